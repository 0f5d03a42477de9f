/**
 * A fake data path. It writes everything that its keeper passes to it into the file that stands for the mount's
 * /dev/fuse, one line per mount. At each start it reads its behaviour from a file (`Behaviour`).
 */

import { appendFileSync, closeSync, readFileSync, writeSync } from 'node:fs';
import { connect } from 'node:net';
import process from 'node:process';
import { systemClock } from '#base/clock.ts';
import { mapMemory } from '#base/linux/shared-memory.ts';
import { silentLog } from '#base/log.ts';
import type { HeldMount } from '#keeper/held-descriptors.ts';
import { joinKeeper } from '#keeper/join-keeper.ts';
import type { Behaviour } from './keeper-process.ts';

const folder = process.env['STOWAGE_TEST_FOLDER'] ?? '';
const behaviour = JSON.parse(readFileSync(`${folder}/behaviour.json`, 'utf8')) as Behaviour;
const version = process.argv[1]?.includes('other') === true ? 'other' : 'test';
if (behaviour.dies === 'at once') process.kill(process.pid, 'SIGKILL');
const until = performance.now() + (behaviour.loadsForMs ?? 0);
while (performance.now() < until) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10);

/** The offset in the journal, after the keeper's part, of a counter of the data paths that have served. */
const servedAt = 100;
const open = new Map<string, number>();

function writeRecord(as: string, { fd, id, spec }: HeldMount, more = {}): void {
  const at = performance.timeOrigin + performance.now();
  writeSync(fd, `${JSON.stringify({ as, id, spec, pid: process.pid, version, at, ...more })}\n`);
}

const link = joinKeeper({
  clock: systemClock(),
  log: silentLog(),
  version,
  signal: new AbortController().signal,
  handlers: {
    serve: ({ as, journal, mounts, sockets }) => {
      if (behaviour.dies === 'serving') process.kill(process.pid, 'SIGKILL');
      const words = new Uint32Array(mapMemory(journal, 0, 4096).bytes);
      const served = (words[servedAt] ?? 0) + 1;
      words[servedAt] = served;
      for (const mount of mounts) open.set(mount.id, mount.fd);
      for (const mount of mounts) writeRecord(as, mount, { served, sockets: sockets.map(({ about }) => about) });
      for (const { fd } of sockets) closeSync(fd);
      if (behaviour.releasesHeld === true) for (const { id } of sockets) link.release(id);
      if (behaviour.connectsToPort !== undefined) hold(behaviour.connectsToPort);
      link.report(`served ${served}`);
      link.ready();
    },
    add: (mount) => {
      open.set(mount.id, mount.fd);
      writeRecord('added', mount);
    },
    remove: (id) => {
      closeSync(open.get(id) ?? -1);
      appendFileSync(`${folder}/removed`, `${id}\n`);
    },
    flush: async (id) => (id === 'm' ? behaviour.unwritten : undefined) ?? (await new Promise(() => undefined)),
    stop: async () => {
      if (behaviour.stops !== false) return;
      await new Promise(() => undefined);
    },
    exit: () => process.exit(0),
  },
});

function hold(port: number): void {
  const socket = connect(port, '127.0.0.1', () => {
    const { fd } = (socket as unknown as { readonly _handle: { readonly fd: number } })._handle;
    const id = link.hold(fd, `to ${port}`);
    socket.write(`${id}\n`);
  });
}
