"""The Go templates of conditions and values: lexer, parser and functions behind `processors.template`."""
