"""The command line: `entry` starts it, `main` names the commands, `commands` has them; `text` reads and prints rows.

Begin with `main`. `connecting` is how commands find a server, `failures` what becomes of their errors; `doctor` has the
checks behind one of the commands.
"""
