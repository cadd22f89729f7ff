"""Report for spark-submit, on the cluster's session.

  spark-submit "$(python -m reports.places)" --logs DIR --out DIR

`kopgate report` does the same on one machine. The folders must be on a file system that the driver
and the workers see under the same path.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from reports import since
from reports.analysis import facts
from reports.ingest.taken_files import TablesError
from reports.page import answer
from reports.places import argument
from reports.run import ReportRequest, run
from reports.spark_session import open_session


def main() -> int:
    """Exit codes: 0 ready, 3 not ready, 1 failed."""
    parser = argparse.ArgumentParser(prog="reports", description=__doc__)
    parser.add_argument("--logs", type=argument)
    parser.add_argument("--out", type=argument, required=True)
    parser.add_argument("--target", default=facts.DEFAULT_TARGET)
    parser.add_argument(
        "--since", type=since.argument, help="YYYY-MM-DD, or a number of days (30d)"
    )
    given = parser.parse_args()
    try:
        order = ReportRequest(given.logs, given.out, facts.load_target(given.target), given.since)
        summary = run(open_session(None), order, datetime.now(UTC))
    except (TablesError, ValueError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    sys.stderr.writelines(f"{line}\n" for line in answer.warnings(summary["log"]))
    sys.stdout.write("\n".join(answer.five_lines(summary)) + "\n")
    return answer.exit_code(summary)


if __name__ == "__main__":
    sys.exit(main())
