"""Where drafted tokens come from. A draft can change the number of steps, never an answer."""
