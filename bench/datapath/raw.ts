/**
 * The NFS calls of each task, sent by Stowage's NFS client without a mount, with one call in flight (or as many as the task says):
 *
 *   node raw.ts HOST NFS-PORT MOUNT-PORT EXPORT
 *
 * For each line "TASK FOLDER COUNT" on standard input, it prints how many it did per second.
 */
import { createInterface } from 'node:readline';
import { openExport } from '#testing/nfs-export.ts';
import { type EntryPlus, type FileHandle, type NfsClient, stability } from '#wire/nfs3/index.ts';
import { filesEach } from './tree.ts';

const mib = 1024 * 1024;
const block = 4096;
const set = { mode: 0o644 };
type Task = (nfs: NfsClient, folder: FileHandle, count: number) => Promise<void>;

const within = async (nfs: NfsClient, folder: FileHandle, name: string): Promise<FileHandle> =>
  (await nfs.lookup(folder, name)).handle;

async function write(nfs: NfsClient, folder: FileHandle, count: number): Promise<void> {
  const { handle } = await nfs.create(folder, 'written', { mode: 'unchecked', set });
  const data = Buffer.alloc(mib);
  for (let i = 0; i < count; i++) await nfs.write(handle, i * mib, data, stability.unstable);
  await nfs.commit(handle, 0, 0);
}

async function read(nfs: NfsClient, folder: FileHandle, count: number): Promise<void> {
  const handle = await within(nfs, folder, 'large');
  const into = Buffer.allocUnsafeSlow(mib);
  for (let i = 0; i < count; i++) await nfs.read(handle, i * mib, into);
}

const random =
  (inFlight: number): Task =>
  async (nfs, folder, count) => {
    const handle = await within(nfs, folder, 'large');
    const { size } = await nfs.getattr(handle);
    const blocks = Number(size) / block;
    let left = count;
    const slot = async (): Promise<void> => {
      const into = Buffer.allocUnsafeSlow(block);
      while (left-- > 0) await nfs.read(handle, Math.floor(Math.random() * blocks) * block, into);
    };
    await Promise.all(Array.from({ length: inFlight }, slot));
  };

async function create(nfs: NfsClient, folder: FileHandle, count: number): Promise<void> {
  const { handle: made } = await nfs.mkdir(folder, 'made', { mode: 0o755 });
  const data = Buffer.alloc(block);
  for (let i = 0; i < count; i++) {
    const { handle } = await nfs.create(made, `a file with some name ${i}`, { mode: 'guarded', set });
    await nfs.write(handle, 0, data, stability.fileSync);
  }
}

async function stat(nfs: NfsClient, folder: FileHandle, count: number): Promise<void> {
  const tree = await within(nfs, folder, 'tree');
  for (let d = 0; d * filesEach < count; d++) {
    const directory = await within(nfs, tree, `d${d}`);
    for (let f = 0; f < filesEach; f++) await nfs.lookup(directory, `f${f}`);
  }
}

async function entriesOf(nfs: NfsClient, directory: FileHandle): Promise<readonly EntryPlus[]> {
  const all: EntryPlus[] = [];
  let [cookie, verifier] = [0n, 0n];
  for (;;) {
    const page = await nfs.readdirplus({ directory, cookie, verifier, bytes: mib / 16 });
    all.push(...page.entries.filter(({ name }) => name !== '.' && name !== '..'));
    if (page.isEnd) return all;
    cookie = page.entries.at(-1)?.cookie ?? 0n;
    verifier = page.verifier;
  }
}

async function list(nfs: NfsClient, folder: FileHandle): Promise<void> {
  const tree = await within(nfs, folder, 'tree');
  for (const { name } of await entriesOf(nfs, tree)) await entriesOf(nfs, await within(nfs, tree, String(name)));
}

async function remove(nfs: NfsClient, folder: FileHandle): Promise<void> {
  const tree = await within(nfs, folder, 'tree');
  for (const { name } of await entriesOf(nfs, tree)) {
    const directory = await within(nfs, tree, String(name));
    for (const { name: file } of await entriesOf(nfs, directory)) await nfs.remove(directory, file);
    await nfs.rmdir(tree, name);
  }
  await nfs.rmdir(folder, 'tree');
}

const tasks: Readonly<Record<string, Task>> = {
  write,
  read,
  create,
  stat,
  list,
  remove,
  'random-1': random(1),
  'random-32': random(32),
};

async function main([host = '', nfsPort, mountPort]: readonly string[]): Promise<void> {
  const server = { host, nfsPort: Number(nfsPort), mountPort: Number(mountPort) };
  for await (const line of createInterface({ input: process.stdin })) {
    const [name = '', path = '', count] = line.split(' ');
    const task = tasks[name];
    if (task === undefined) throw new Error(`there is no task ${name}`);
    using opened = await openExport(server, path, { connections: 1 });
    const began = performance.now();
    await task(opened.nfs, opened.root, Number(count));
    console.log(JSON.stringify((Number(count) * 1000) / (performance.now() - began)));
  }
}

await main(process.argv.slice(2));
