"""Go templates over records: conditions, values, names of tables and topics. `template` compiles one."""
