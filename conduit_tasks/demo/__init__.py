"""The demo: real flights to three destinations, and the receiver that checks one of them from outside."""
