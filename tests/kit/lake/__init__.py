"""Tables that are tiered, what the lake has to have of them, and lakes of attackers."""
