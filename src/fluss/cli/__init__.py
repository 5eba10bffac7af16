"""The command line: `entry` starts it, `main` names the commands; a module is a command, or what several share."""
