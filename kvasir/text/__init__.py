"""From token events to text: choices, and beams."""
