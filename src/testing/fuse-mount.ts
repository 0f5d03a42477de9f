import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants, mkdirSync, openSync } from 'node:fs';
import { promisify } from 'node:util';
import { requestOverhead } from '#wire/fuse/abi.ts';
import { type Device, openDevice, type Slot } from '#wire/fuse/device.ts';
import type { InitOptions, InitResult } from '#wire/fuse/init.ts';
import type { Operations } from '#wire/fuse/operations.ts';
import { createSession } from '#wire/fuse/session.ts';
import type { ScratchFolder } from './scratch-folder.ts';

const run = promisify(execFile);
const maxWrite = 1024 * 1024;

export const defaultInitOptions: InitOptions = {
  flags: ['asyncRead', 'atomicOTrunc', 'parallelDirops', 'doReaddirplus', 'readdirplusAuto', 'abortError', 'hasResend'],
  maxWrite,
  maxReadahead: maxWrite,
  maxBackground: 64,
  timeGranularity: 1,
};

export interface FuseMount extends AsyncDisposable {
  readonly at: string;
  readonly agreement: InitResult;
  readonly device: Device;
  /** Keeps the memory of a request after its answer, until `free`. */
  keep(place: number): void;
  free(place: number): void;
  /** Unexpected exceptions of operations. */
  readonly faults: unknown[];
  /** Why the FUSE device was closed. */
  readonly ended: Promise<string>;
}

interface ServedHere {
  readonly slots: number;
  readonly onFull: () => void;
  /** kernel: the kernel checks the permissions of callers. server: the operations do. */
  readonly checks: 'kernel' | 'server';
}

/**
 * A killed process that serves its own mount can't exit while one of its threads waits for the mount: the FUSE device
 * stays open, and no process answers. So another process watches this one, and aborts the mount after its end.
 */
export function startUnmountWatchdog(at: string): Disposable {
  // /proc/PID/exe disappears when the process begins to exit.
  const script = 'while [ -e "/proc/$1/exe" ]; do sleep 1; done; umount -f -l "$2"';
  const child = spawn('sh', ['-c', script, 'guard', String(process.pid), at], { stdio: 'ignore', detached: true });
  child.unref();
  return { [Symbol.dispose]: () => void child.kill() };
}

/** Makes a real mount, and serves it in this process. The main thread must not make blocking calls on the mount. */
export async function mountFuse(
  { folder }: Pick<ScratchFolder, 'folder'>,
  operations: Partial<Operations>,
  wishes = defaultInitOptions,
  { slots = 32, onFull = () => {}, checks = 'kernel' }: Partial<ServedHere> = {},
): Promise<FuseMount> {
  const at = `${folder}/mnt`;
  mkdirSync(at, { recursive: true });
  const fd = openSync('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
  const rights = ['user_id=0', 'group_id=0', 'allow_other', ...(checks === 'kernel' ? ['default_permissions'] : [])];
  const options = ['fd=3', 'rootmode=40000', ...rights].join(',');
  const child = spawn('mount', ['-i', '-t', 'fuse', '-o', options, 'stowage-test', at], {
    stdio: ['ignore', 'inherit', 'inherit', fd],
  });
  const [status] = await once(child, 'exit');
  if (status !== 0) throw new Error(`mount ended with ${status}`);
  const guarding = startUnmountWatchdog(at);
  const faults: unknown[] = [];
  const free = Array.from({ length: slots }, (_, place) => createSlot(place));
  const used = new Map<number, Slot>();
  const kept = new Set<number>();
  const freeSlot = (place: number): void => {
    const slot = used.get(place);
    if (slot !== undefined) free.push(slot);
    used.delete(place);
    device.resume();
  };
  const { promise: ended, resolve: end } = Promise.withResolvers<string>();
  const { promise: agreed, resolve: agree } = Promise.withResolvers<InitResult>();
  const session = createSession({
    operations,
    initOptions: wishes,
    onInit: agree,
    store: {
      reply: (place, bytes) => {
        device.write(bytes);
        if (!kept.has(place)) freeSlot(place);
      },
      finished: freeSlot,
    },
    onFault: (operation, cause) => faults.push({ operation, cause }),
  });
  const device = openDevice({
    fd,
    nextSlot: () => {
      const slot = free.at(-1);
      if (slot === undefined) onFull();
      return slot;
    },
    onRequest: (slot, end) => {
      free.pop();
      used.set(slot.index, slot);
      session.handle(slot.index, { buffer: slot.buffer, view: slot.view, end });
    },
    onEnd: end,
  });
  const agreement = await agreed;
  return {
    at,
    agreement,
    device,
    faults,
    ended,
    keep: (place) => void kept.add(place),
    free: (place) => {
      // Deferred, because the device may still have to write the answer.
      setImmediate(() => {
        kept.delete(place);
        freeSlot(place);
      });
    },
    [Symbol.asyncDispose]: async () => {
      device[Symbol.dispose]();
      await ended;
      guarding[Symbol.dispose]();
      await run('umount', ['--lazy', at]).catch(() => undefined);
    },
  };
}

function createSlot(place: number): Slot {
  const memory = new ArrayBuffer(maxWrite + requestOverhead);
  return { index: place, buffer: Buffer.from(memory), view: new DataView(memory) };
}
