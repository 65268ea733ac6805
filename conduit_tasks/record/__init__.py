"""The OpenCDC record, its Arrow schema, field references and the CloudEvents view."""
