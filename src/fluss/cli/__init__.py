"""The command line: `entry` starts it, `main` names the commands, `commands` has them; `text` reads and prints rows."""
