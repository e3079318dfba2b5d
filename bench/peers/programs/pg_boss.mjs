// pg-boss: tasks through send() and insert(), worked in batches by work().

import { PgBoss } from "pg-boss";
import { main } from "./common.mjs";

const QUEUE = "noop";
const CONNECTIONS = { one: 1, twenty: 10, bulk: 3 };

function open(options) {
  const boss = new PgBoss({ connectionString: process.env.BENCH_DSN, ...options });
  boss.on("error", (error) => console.error(error));
  return boss;
}

// A process that only sends leaves migrations, maintenance and cron to the workers.
const openProducer = (max) => open({ max, migrate: false, supervise: false, schedule: false });

async function setup() {
  const cleaner = openProducer(1);
  const database = cleaner.getDb();
  await database.open();
  await database.executeSql("DROP SCHEMA IF EXISTS pgboss CASCADE");
  await database.close();

  const boss = open({ max: 1 });
  await boss.start();
  await boss.createQueue(QUEUE, { notify: true });
  await boss.stop();
}

async function connect(mode) {
  const max = CONNECTIONS[mode];
  const boss = openProducer(max);
  await boss.start();
  await boss.getQueue(QUEUE);
  await Promise.all(Array.from({ length: max }, () => boss.getDb().executeSql("SELECT pg_sleep(0.05)")));
  return {
    batch: 1_000,
    lanes: CONNECTIONS.bulk,
    add: (payload) => boss.send(QUEUE, payload),
    addMany: (payloads, dueAt) =>
      boss.insert(
        QUEUE,
        payloads.map((data) => (dueAt === undefined ? { data } : { data, startAfter: dueAt })),
      ),
    close: () => boss.stop(),
  };
}

async function work(start) {
  // Listening takes a connection beside the pool.
  const boss = open({ max: 9, useListenNotify: true });
  await boss.start();
  const options = {
    batchSize: 2_000,
    localConcurrency: 4,
    burstWhenBatchFull: true,
    // The least it takes: a task that falls due later is found by polling, not announced.
    pollingIntervalSeconds: 0.5,
    notifyPollingIntervalSeconds: 0.5,
  };
  await boss.work(QUEUE, options, async (jobs) => {
    for (const { data } of jobs) start(data);
  });
  return () => boss.stop({ timeout: 5_000 });
}

await main({ setup, connect, work });
