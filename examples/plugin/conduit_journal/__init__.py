"""An example of a package that adds a connector and a processor to Conduit Tasks."""
