"""Submit tasks for `email_worker.py`, and wait for one of them: python submit_emails.py [COUNT]"""

import sys

from email_worker import build

from duetime import Client, Submission


def main(count: int) -> None:
    with Client() as client:  # DUETIME_URL and DUETIME_KEY, or those of a `make up` in this folder
        result = client.submit_many(
            Submission("email.send", {"to": f"user{number}@example.com"}, queue="mail") for number in range(count)
        )
        print(f"{result.accepted} accepted, {result.rejected} rejected")
        # By its function: the type and the queue are the worker's.
        report = build.submit({"size": 100_000}, delay="1s", labels={"kind": "example"})
        done = client.wait(report, timeout=60)
        print(f"report {done.id}: {done.state}, result {done.result}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
