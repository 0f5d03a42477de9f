import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Row, toRow } from './report.ts';
import { runScript } from './run-script.ts';
import { type Server, startServer } from './server.ts';

const rounds = 7;
const volumesPerRound = 2000;
const inFlight = 32;
const starts = 5;
const [few, many] = [5000, 20_000] as const;
const store = 'bench';

interface Times {
  readonly createMs: number;
  readonly deleteMs: number;
}
type Note = (text: string) => void;

export const bench = {
  about: 'volumes created and deleted per second against the bare file system; start-up time; memory',
  run: async (signal: AbortSignal, note: Note): Promise<readonly Row[]> => {
    const folder = await mkdtemp(join(tmpdir(), 'stowage-bench-'));
    try {
      return [
        ...(await speed(join(folder, 'speed'), signal, note)),
        ...(await startUp(join(folder, 'start'), signal, note)),
        ...(await growth(join(folder, 'growth'), signal, note)),
      ];
    } finally {
      await rm(folder, { recursive: true });
    }
  },
};

async function startWithStore(folder: string, signal: AbortSignal): Promise<Server> {
  await mkdir(join(folder, 'store'), { recursive: true });
  const server = await startServer(folder, signal);
  try {
    await post(server.socket, '/v1/stores', { name: store, uri: `local://${join(folder, 'store')}` }, signal);
    return server;
  } catch (cause) {
    await server[Symbol.asyncDispose]();
    throw cause;
  }
}

async function post(socketPath: string, path: string, body: unknown, signal: AbortSignal): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const limit = AbortSignal.any([signal, AbortSignal.timeout(30_000)]);
  const headers = { 'content-type': 'application/json' };
  const sent = request({ socketPath, path, method: 'POST', headers, signal: limit }, (answer) => {
    answer.resume();
    if (answer.statusCode === 201) resolve();
    else reject(new Error(`POST ${path} was answered with ${answer.statusCode}`));
  });
  sent.on('error', reject);
  sent.end(JSON.stringify(body));
  await promise;
}

const load = (server: Server, prefix: string, count: number, what: string, signal: AbortSignal): Promise<Times> =>
  runScript(
    new URL('engine/load.ts', import.meta.url),
    [server.socket, store, prefix, `${count}`, `${inFlight}`, what],
    signal,
  );

async function speed(folder: string, signal: AbortSignal, note: Note): Promise<readonly Row[]> {
  const bareFolder = join(folder, 'bare');
  await mkdir(bareFolder, { recursive: true });
  await using server = await startWithStore(folder, signal);
  const sides = {
    ours: (prefix: string) => load(server, prefix, volumesPerRound, 'both', signal),
    bare: (prefix: string) =>
      runScript<Times>(
        new URL('engine/bare.ts', import.meta.url),
        [bareFolder, prefix, `${volumesPerRound}`, `${inFlight}`],
        signal,
      ),
  };
  const times: Record<keyof typeof sides, Times[]> = { ours: [], bare: [] };
  for (let round = 0; round <= rounds; round++) {
    // The sides take turns at being the first.
    const order = round % 2 === 0 ? (['ours', 'bare'] as const) : (['bare', 'ours'] as const);
    for (const side of order) {
      const took = await sides[side](`${side}-${round}`);
      note(
        `${round === 0 ? 'warm-up' : `round ${round}/${rounds}`}: ${side} ${Math.round(perSecond.both(took))} volumes/s`,
      );
      if (round > 0) times[side].push(took);
    }
  }
  const row = (name: string, of: (took: Times) => number) =>
    ({ name, unit: '/s', values: times.ours.map(of), yardsticks: times.bare.map(of) }) as const;
  return [
    toRow({ ...row('volumes created and deleted, 32 in flight', perSecond.both), goal: { ratioAtLeast: 0.35 } }),
    toRow(row('volumes created', perSecond.created)),
    toRow(row('volumes deleted', perSecond.deleted)),
  ];
}

const perSecond = {
  both: ({ createMs, deleteMs }: Times): number => (volumesPerRound * 1000) / (createMs + deleteMs),
  created: ({ createMs }: Times): number => (volumesPerRound * 1000) / createMs,
  deleted: ({ deleteMs }: Times): number => (volumesPerRound * 1000) / deleteMs,
};

async function startUp(folder: string, signal: AbortSignal, note: Note): Promise<readonly Row[]> {
  const seconds: number[] = [];
  const memory: number[] = [];
  for (let start = 1; start <= starts; start++) {
    const own = join(folder, `${start}`);
    await mkdir(own, { recursive: true });
    await using server = await startServer(own, signal);
    seconds.push(server.readyMs / 1000);
    memory.push(await server.restingMemory(signal));
    note(
      `start ${start}/${starts}: ready after ${Math.round(server.readyMs)} ms, ${Math.round(memory.at(-1) ?? 0)} MB`,
    );
  }
  return [
    toRow({ name: 'start to ready', unit: 's', values: seconds, goal: { valueBelow: 3 } }),
    toRow({ name: 'memory when idle', unit: 'MB', values: memory, goal: { valueBelow: 120 } }),
  ];
}

async function growth(folder: string, signal: AbortSignal, note: Note): Promise<readonly Row[]> {
  await using server = await startWithStore(folder, signal);
  await load(server, 'few', few, 'create', signal);
  const before = await server.restingMemory(signal);
  note(`${few} volumes: ${Math.round(before)} MB`);
  await load(server, 'many', many - few, 'create', signal);
  const after = await server.restingMemory(signal);
  note(`${many} volumes: ${Math.round(after)} MB`);
  return [
    toRow({ name: `memory with ${few} volumes`, unit: 'MB', values: [before] }),
    toRow({ name: `memory with ${many} volumes`, unit: 'MB', values: [after] }),
    toRow({
      name: `growth from ${few} to ${many} volumes`,
      unit: 'MB',
      values: [after - before],
      goal: { valueBelow: 20 },
    }),
  ];
}
