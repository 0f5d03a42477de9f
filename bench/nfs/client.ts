/**
 * Makes NFS version 3 calls with Stowage's client. Takes the same commands as e2e/testbed/libnfs-bench/libnfs-bench.c:
 * node client.ts HOST NFS-PORT MOUNT-PORT EXPORT FOLDER
 */
import { createInterface } from 'node:readline';
import { systemClock } from '#base/clock.ts';
import {
  createNfsClient,
  createRpcClient,
  type DeferredBuffer,
  type FileHandle,
  type NfsClient,
  type RpcClient,
  stability,
} from '#wire/nfs3/index.ts';
import { mnt } from '#wire/nfs3/mount.ts';
import type { OperationName } from './operations.ts';

const mib = 1024 * 1024;
/** The size of the large file. Reads and writes wrap around in it. */
const fileMib = 64;

interface Operation {
  /** A returned number counts that many entries; any other result counts as one. */
  run(number: number): Promise<unknown>;
  /** Runs at the end, untimed. */
  undo?(number: number): Promise<unknown>;
}

const clock = systemClock();
const identity = { uid: 0, gid: 0, groups: [], machine: 'bench' };
const connect = (host: string, port: number): RpcClient =>
  createRpcClient({ clock, addresses: [{ host, port }], identity, connections: 1 });

async function mount(host: string, port: number, path: string): Promise<FileHandle> {
  using rpc = connect(host, port);
  return (await rpc.call(mnt, path)).handle;
}

async function prepare(client: NfsClient, root: FileHandle, name: string): Promise<Record<OperationName, Operation>> {
  const { handle: folder } = await client.lookup(root, name);
  const { handle: many } = await client.lookup(folder, 'many');
  const set = { mode: 0o644 };
  const { handle: large } = await client.create(folder, 'large', { mode: 'unchecked', set });
  const data = Buffer.from(Uint8Array.from({ length: mib }, (_, i) => i * 7));
  const [first4k, into] = [data.subarray(0, 4096), createMemory(mib)];
  const offset = (number: number): number => (number % fileMib) * mib;
  const write = (number: number) => client.write(large, offset(number), data, stability.unstable);
  for (let i = 0; i < fileMib; i++) await write(i);
  return {
    getattr: { run: () => client.getattr(folder) },
    lookup: { run: () => client.lookup(folder, 'large') },
    mkdir: {
      run: (number) => client.mkdir(folder, `d${number}`, { mode: 0o755 }),
      undo: (number) => client.rmdir(folder, `d${number}`),
    },
    file: {
      run: async (number) => {
        const { handle } = await client.create(folder, `f${number}`, { mode: 'unchecked', set });
        await client.write(handle, 0, first4k, stability.unstable);
        await client.remove(folder, `f${number}`);
      },
    },
    read: {
      run: async (number) => {
        const { count, data: got } = await client.read(large, offset(number), into);
        if (count !== mib) throw new Error(`READ gave ${count} bytes`);
        into.free(got);
      },
    },
    write: { run: write },
    readdirplus: { run: () => list(client, many) },
  };
}

/** Like libnfs, allocates memory when a reply arrives and frees it when the reply was read. */
function createMemory(length: number): DeferredBuffer & { free(buffer: Buffer): void } {
  const free: Buffer[] = [];
  return {
    length,
    take: (wanted) => (free.pop() ?? Buffer.allocUnsafeSlow(length)).subarray(0, wanted),
    free: (buffer) => void free.push(buffer),
  };
}

async function list(client: NfsClient, directory: FileHandle): Promise<number> {
  let [count, cookie, verifier] = [0, 0n, 0n];
  for (;;) {
    const page = await client.readdirplus({ directory, cookie, verifier, bytes: 65_536 });
    count += page.entries.length;
    if (page.isEnd) return count;
    cookie = page.entries.at(-1)?.cookie ?? 0n;
    verifier = page.verifier;
  }
}

async function measure({ run, undo }: Operation, inFlight: number, ms: number) {
  let [started, count] = [0, 0];
  const [began, used] = [performance.now(), process.cpuUsage()];
  const unlessAborted = began + ms;
  const slot = async (): Promise<void> => {
    do {
      const made = await run(started++);
      count += typeof made === 'number' ? made : 1;
    } while (performance.now() < unlessAborted);
  };
  await Promise.all(Array.from({ length: inFlight }, slot));
  const { user, system } = process.cpuUsage(used);
  const perSecond = (count * 1000) / (performance.now() - began);
  if (undo !== undefined) {
    let next = 0;
    const back = async (): Promise<void> => {
      while (next < started) await undo(next++);
    };
    await Promise.all(Array.from({ length: 64 }, back));
  }
  return { count, perSecond, cpuMicroseconds: (user + system) / count };
}

async function main([host = '', nfsPort, mountPort, path = '', folder = '']: readonly string[]): Promise<void> {
  const root = await mount(host, Number(mountPort), path);
  using rpc = connect(host, Number(nfsPort));
  const operations = await prepare(createNfsClient(rpc, clock), root, folder);
  for await (const line of createInterface({ input: process.stdin })) {
    const [name = '', inFlight, ms] = line.split(' ');
    const operation = operations[name as OperationName];
    console.log(JSON.stringify(await measure(operation, Number(inFlight), Number(ms))));
  }
}

await main(process.argv.slice(2));
