// What the Node programs share: the command line, the payload, pacing, and the record of what ran.
//
// A program passes main() its peer: setup(), connect(mode) and work(start).  connect() returns a
// producer: add(payload) sends one task, addMany(payloads, dueAt) sends a batch, and batch and lanes
// say how bulk is cut and how many batches are in flight.  work() calls start(payload) as a handler
// begins and returns what stops the worker.

import fs from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const LINE = 24;
const FLUSH_MILLISECONDS = 10;
const STOP_MILLISECONDS = 8_000;
const PAD = "x".repeat(80);

const makePayload = (n) => ({ to: "user@example.com", template: "welcome", n, pad: PAD });

// Date.now() counts whole milliseconds, too coarse for a lag of two or three of them.
const readClock = () => (performance.timeOrigin + performance.now()) / 1000;

// The instant as a Date, which has whole milliseconds: rounded up, so that no task runs early.
const toDate = (seconds) => new Date(Math.ceil(seconds * 1000));

const inParallel = (lanes, run) => Promise.all(Array.from({ length: lanes }, run));

async function addInBulk(producer, count, makeOne, dueAt) {
  let next = 0;
  await inParallel(producer.lanes, async () => {
    while (next < count) {
      const first = next;
      next = Math.min(count, first + producer.batch);
      const payloads = Array.from({ length: next - first }, (_, index) => makeOne(first + index));
      await producer.addMany(payloads, dueAt);
    }
  });
}

async function addOneByOne(producer, count, lanes) {
  let next = 0;
  await inParallel(lanes, async () => {
    while (next < count) await producer.add(makePayload(next++));
  });
}

async function submit(peer, mode, count) {
  const producer = await peer.connect(mode);
  const began = performance.now();
  if (mode === "bulk") await addInBulk(producer, count, makePayload);
  else await addOneByOne(producer, count, mode === "twenty" ? 20 : 1);
  const seconds = (performance.now() - began) / 1000;
  await producer.close();
  return { count, seconds };
}

async function burst(peer, count, at) {
  const producer = await peer.connect("bulk");
  const began = performance.now();
  await addInBulk(producer, count, (n) => ({ ...makePayload(n), at }), toDate(at));
  const seconds = (performance.now() - began) / 1000;
  await producer.close();
  return { count, seconds };
}

async function lag(peer, rate, seconds) {
  const producer = await peer.connect("one");
  const count = Math.round(rate * seconds);
  const began = performance.now();
  for (let n = 0; n < count; n++) {
    const wait = began + (1000 * n) / rate - performance.now();
    if (wait > 0) await sleep(wait);
    await producer.add({ ...makePayload(n), at: readClock() });
  }
  await producer.close();
  return { count };
}

// Lines of one size, so that a reader counts by the file's size, and several processes can append.
class Record {
  #file;
  #pending = [];
  #timer = null;

  constructor(path) {
    this.#file = fs.openSync(path, fs.constants.O_WRONLY | fs.constants.O_CREAT | fs.constants.O_APPEND, 0o644);
  }

  start = ({ at }) => {
    this.#pending.push(at === undefined ? null : 1000 * (readClock() - at));
    this.#timer ??= setTimeout(this.flush, FLUSH_MILLISECONDS);
  };

  flush = () => {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#pending.length === 0) return;
    const lines = Buffer.alloc(LINE * this.#pending.length, " ");
    this.#pending.forEach((milliseconds, index) => {
      if (milliseconds !== null) lines.write(milliseconds.toFixed(6).padStart(LINE - 1), LINE * index, "latin1");
      lines[LINE * index + LINE - 1] = 10;
    });
    this.#pending = [];
    fs.writeSync(this.#file, lines);
  };
}

async function work(peer, path) {
  const record = new Record(path);
  const asked = new Promise((resolve) => {
    for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, resolve);
  });
  const stop = await peer.work(record.start);
  console.log("ready");
  await asked;
  await Promise.race([stop(), sleep(STOP_MILLISECONDS)]);
  record.flush();
}

async function run(peer, [command, ...values]) {
  switch (command) {
    case "setup":
      return peer.setup();
    case "submit":
      return submit(peer, values[0], Number(values[1]));
    case "lag":
      return lag(peer, Number(values[0]), Number(values[1]));
    case "burst":
      return burst(peer, Number(values[0]), Number(values[1]));
    case "work":
      return work(peer, values[0]);
    default:
      throw new Error(`unknown command: ${command}`);
  }
}

export async function main(peer) {
  const answer = await run(peer, process.argv.slice(2));
  if (answer !== undefined) console.log(JSON.stringify(answer));
  process.exit(0);
}
