// BullMQ: tasks through Queue.add and addBulk, run by a Worker.

import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";
import { main } from "./common.mjs";

const QUEUE = "bench";
const TASK = "noop";

const connection = { url: process.env.BENCH_REDIS };

function open() {
  const queue = new Queue(QUEUE, { connection });
  queue.on("error", (error) => console.error(error));
  return queue;
}

async function setup() {
  const redis = new Redis(process.env.BENCH_REDIS);
  await redis.flushdb();
  await redis.quit();
}

async function connect(mode) {
  const lanes = mode === "bulk" ? 3 : 1;
  const queues = Array.from({ length: lanes }, open);
  await Promise.all(queues.map((queue) => queue.waitUntilReady()));
  let turn = 0;
  return {
    batch: 500,
    lanes,
    add: (data) => queues[0].add(TASK, data),
    addMany: (payloads, dueAt) => {
      const opts = dueAt && delayUntil(dueAt);
      return queues[turn++ % lanes].addBulk(payloads.map((data) => ({ name: TASK, data, opts })));
    },
    close: () => Promise.all(queues.map((queue) => queue.close())),
  };
}

// A delay counts from the task's timestamp: given both, the due time is exact.
function delayUntil(dueAt) {
  const timestamp = Date.now();
  return { timestamp, delay: Math.max(0, dueAt.getTime() - timestamp) };
}

async function work(start) {
  const worker = new Worker(QUEUE, async ({ data }) => start(data), { connection, concurrency: 100 });
  worker.on("error", (error) => console.error(error));
  await worker.waitUntilReady();
  return () => worker.close();
}

await main({ setup, connect, work });
