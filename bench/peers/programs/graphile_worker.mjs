// graphile-worker: tasks through WorkerUtils and the SQL function add_jobs, run by a worker pool.

import { EventEmitter, once } from "node:events";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { main } from "./common.mjs";

const TASK = "noop";
const CONNECTIONS = { one: 1, twenty: 10, bulk: 2 };

// It warns of a pool smaller than its concurrency, which tasks that need no connection do not use.
const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

const shared = { connectionString: process.env.BENCH_DSN, logger, preparedStatements: true };

async function setup() {
  const utils = await makeWorkerUtils({ preset: { worker: shared } });
  await utils.withPgClient((client) => client.query("DROP SCHEMA IF EXISTS graphile_worker CASCADE"));
  await utils.migrate();
  await utils.release();
}

async function connect(mode) {
  const maxPoolSize = CONNECTIONS[mode];
  const utils = await makeWorkerUtils({ preset: { worker: { ...shared, maxPoolSize } } });
  const touch = () => utils.withPgClient((client) => client.query("SELECT pg_sleep(0.05)"));
  await Promise.all(Array.from({ length: maxPoolSize }, touch));
  return {
    batch: 2_000,
    lanes: CONNECTIONS.bulk,
    add: (payload) => utils.addJob(TASK, payload),
    addMany: (payloads, dueAt) => addMany(utils, payloads, dueAt),
    close: () => utils.release(),
  };
}

// add_jobs in SQL rather than WorkerUtils.addJobs, which fetches every row it has added and adds half as many.
function addMany(utils, payloads, dueAt) {
  const specs = payloads.map((payload) => ({ identifier: TASK, payload, run_at: dueAt }));
  return utils.withPgClient((client) =>
    client.query({
      name: "add_jobs",
      text: `SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
               SELECT json_populate_recordset(NULL::graphile_worker.job_spec, $1::json)))`,
      values: [JSON.stringify(specs)],
    }),
  );
}

async function work(start) {
  const events = new EventEmitter();
  const listening = once(events, "pool:listen:success");
  const runner = await run({
    preset: {
      worker: {
        ...shared,
        concurrentJobs: 24,
        maxPoolSize: 10,
        pollInterval: 20,
        localQueue: { size: Number(process.env.LOCAL_QUEUE_SIZE ?? 500) },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
    noHandleSignals: true,
    parsedCronItems: [],
    events,
    taskList: {
      [TASK]: async (payload) => {
        start(payload);
      },
    },
  });
  await listening;
  return () => runner.stop();
}

await main({ setup, connect, work });
