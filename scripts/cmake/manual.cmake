# Run when qplan is installed: writes its pages into ${man} and its completions below ${share}. They are
# of the program that is installed, which is built before; ${emulator} runs it where it is for other machines.
execute_process(COMMAND ${emulator} ${qplan} man --out ${man} COMMAND_ERROR_IS_FATAL ANY)

set(bash bash-completion/completions/qplan)
set(zsh zsh/site-functions/_qplan)
set(fish fish/vendor_completions.d/qplan.fish)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND EXISTS /etc/debian_version)
  set(zsh zsh/vendor-completions/_qplan) # where Debian's zsh looks below /usr
endif()
foreach(shell bash zsh fish)
  get_filename_component(folder ${share}/${${shell}} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${emulator} ${qplan} completions ${shell} OUTPUT_FILE ${share}/${${shell}}
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
