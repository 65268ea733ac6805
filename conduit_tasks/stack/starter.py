"""The files of a starter project, path → text: `conduit init` writes all, the stack those that it needs."""

from __future__ import annotations

EXAMPLE = """\
# yaml-language-server: $schema=../pipeline.schema.json
# Check this file with `conduit validate`, see what it promises with `conduit explain example`.
version: "2.2"
pipelines:
  - id: example
    description: Orders from a CSV file, all of them to one file and the large ones to another.
    schedule: 30s                      # or cron: "*/5 * * * *", or @continuous
    # wake: [orders]                                          # a new order starts a run before its time
    # micro-batch: {max-records: 500000, max-bytes: 256MiB}   # how much one run reads at most
    # lag-budget: {records: 1000000, age: 6h}                 # how far reading may be ahead; default one micro-batch
    # isolate: true                                           # a destination that fails does not stop the others

    connectors:
      - id: orders
        type: source
        plugin: builtin:file
        settings:
          path: include/data/orders.csv
          format: csv
        processors:                    # see this source's records only
          - id: amount
            plugin: field.convert
            settings: {field: .Payload.After.amount, type: int}
          - id: large
            plugin: field.set
            condition: '{{ ge .Payload.After.amount 100 }}'
            settings: {field: .Metadata.size, value: large}

      - id: all
        type: destination
        plugin: builtin:file
        settings: {path: out/orders.jsonl}

      - id: large-ones
        type: destination
        plugin: builtin:file
        settings: {path: out/large-orders.jsonl}
        trigger:
          filters: [{exact: {size: large}}]
        # delivery: {order-by: key, retry: 5, backoff-policy: exponential, backoff-delay: 200ms, timeout: 10s}

    # processors:                      # see all records, after the sources' own
    #   - {id: tidy, plugin: field.exclude, settings: {fields: .Payload.After.note}}

    # The default stops at the first record that fails. This keeps up to 5 of the last 100 and goes on:
    dead-letter-queue: {window-size: 100, window-nack-threshold: 5}
"""

ORDERS = """\
order,customer,amount,note
1,Ada,120,gift
2,Ben,35,
3,Cleo,210,urgent
4,Dan,8,
5,Eve,100,
"""

TESTS = """\
# Unit tests of example.yaml: `conduit pipelines test include/pipelines/example.yaml`
tests:
  - name: a large order goes to both files
    input:
      - {payload: {after: {order: "1", amount: "100"}}}
      - {payload: {after: {order: "2", amount: "99"}}}
    expect:
      all:
        - {payload: {after: {order: "1", amount: 100}}, metadata: {size: large}}
        - {payload: {after: {order: "2", amount: 99}}, metadata: {size: null}}
      large-ones:
        - {payload: {after: {order: "1", amount: 100}}}
  - name: an amount that is no number is a dead letter
    input: [{payload: {after: {order: "3", amount: many}}}]
    nacks: [{processor: amount, message: cannot become int}]
"""

DAGS = '''\
"""The Airflow DAGs of all pipeline files: of each pipeline one, and one that sends its records again."""

from airflow.sdk import get_parsing_context

from conduit_tasks.airflow.factory import load_dags

for dag in load_dags(only=get_parsing_context().dag_id):
    globals()[dag.dag_id] = dag
'''

ERRORS = '''\
"""No DAG of its own: fails to import where a pipeline file has errors, so that Airflow shows them."""

from conduit_tasks.airflow.errors import raise_findings

raise_findings()
'''

FILES = {
    "include/pipelines/example.yaml": EXAMPLE,
    "include/pipelines/example.test.yaml": TESTS,
    "include/data/orders.csv": ORDERS,
    "dags/conduit.py": DAGS,
    "dags/conduit_errors.py": ERRORS,
    ".gitignore": ".conduit/\nout/\n",
}
SCHEMA = "include/pipeline.schema.json"
"""Path of the JSON Schema, which is written from the model."""
