import { constants } from 'node:fs';
import { type FileHandle, open, readdir, readFile } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { lazyBindings, libc, SystemError } from '#base/linux/libc.ts';
import type { Scope } from '#base/log.ts';
import { StillRunning, waitWithGrace } from '#base/wait.ts';
import { StowageError } from '#core/errors.ts';
import { type Loop, listAttachedLoops } from './attached-loops.ts';
import {
  addLoop,
  clearLoop,
  configureLoop,
  freeLoop,
  keepLoopAttached,
  setLoopDirectIo,
  updateLoopCapacity,
} from './loop-calls.ts';

/** A device that this process has open. No other file can be attached to it until it is disposed of. */
export interface HeldLoop extends AsyncDisposable {
  /** `/dev/loop3`. */
  readonly path: string;
  readonly fd: number;
  readonly readOnly: boolean;
  /** Keeps the file attached after this is disposed of. */
  keep(): Promise<void>;
}

/** Stowage's own loop devices. Each call queries one device and no other. */
export interface LoopDevices {
  /** Attaches the image to a device of its own. The kernel detaches it when no process has it open and nothing is mounted from it. */
  attach(image: string, readOnly: boolean, scope: Scope): Promise<HeldLoop>;
  /** Undefined: the device has another file by now, or none. */
  hold(loop: Loop, scope: Scope): Promise<HeldLoop | undefined>;
  /** True: the file was attached. If another process has the device open, the kernel detaches it with the last close. */
  detach(loop: Loop, scope: Scope): Promise<boolean>;
  updateCapacity(loop: Loop, scope: Scope): Promise<void>;
  /** False: the underlying file system does not support direct I/O. */
  useDirectIo(loop: Loop, scope: Scope): Promise<boolean>;
}

const deviceTimeoutMs = 30_000;
/** Several attempts, because other programs take free devices at the same time. */
const maxAttachAttempts = 50;
/** If a free device was busy this often, another program has it open exclusively. */
const maxBusyPerDevice = 5;

export function createLoopDevices(clock: Clock, sys = '/sys/block', dev = '/dev'): LoopDevices {
  /** The image's disk may have stopped answering. Then the caller gets an error, and the call ends when the kernel returns. */
  async function withDeadline<T>(what: string, scope: Scope, work: Promise<T>): Promise<T> {
    using limit = clock.deadline(deviceTimeoutMs, scope.signal);
    try {
      return await waitWithGrace(work, limit.signal, clock);
    } catch (cause) {
      if (!(cause instanceof StillRunning)) throw cause;
      void work.then(disposeResult, () => undefined);
      throw scope.signal.aborted ? scope.signal.reason : tooSlow(what, cause);
    }
  }

  /** Opened read-only: newer kernels refuse to mount a device that is open for writing. */
  async function openDevice(name: string, readOnly: boolean): Promise<HeldLoop> {
    await makeNode(`${dev}/${name}`, `${sys}/${name}/dev`);
    const device = await open(`${dev}/${name}`, constants.O_RDONLY);
    return {
      path: `${dev}/${name}`,
      fd: device.fd,
      readOnly,
      keep: () => keepLoopAttached(device.fd),
      [Symbol.asyncDispose]: () => device.close(),
    };
  }

  async function holdIfSame({ name, file, readOnly, sequence }: Loop): Promise<HeldLoop | undefined> {
    let device: HeldLoop;
    try {
      device = await openDevice(name, readOnly);
    } catch (cause) {
      if (isErrno(cause, 'ENOENT', 'ENXIO', 'ENODEV')) return undefined;
      throw cause;
    }
    // While the device is open no other file can be attached to it.
    const readAttribute = async (what: string): Promise<string> =>
      (await readFile(`${sys}/${name}/${what}`, 'utf8').catch(() => '')).replace(/\n$/, '');
    const attached = await readAttribute('loop/backing_file');
    // In another container the same path may be another file.
    const isSame = sequence === undefined || (await readAttribute('diskseq')) === sequence;
    if (isSame && [file, `${file} (deleted)`].includes(attached)) return device;
    await device[Symbol.asyncDispose]();
    return undefined;
  }

  /** Undefined: another program was faster. */
  async function tryAttach(name: string, backing: FileHandle, image: string, readOnly: boolean) {
    try {
      await makeNode(`${dev}/${name}`, `${sys}/${name}/dev`);
      await using device = await open(`${dev}/${name}`, constants.O_RDWR);
      await configureLoop(device.fd, { backingFd: backing.fd, file: image, readOnly });
      return await openDevice(name, readOnly);
    } catch (cause) {
      if (isErrno(cause, 'EBUSY', 'ENXIO', 'ENODEV', 'ENOENT', 'EAGAIN')) return { busy: cause };
      throw cause;
    }
  }

  async function attach(image: string, requestedReadOnly: boolean, signal: AbortSignal): Promise<HeldLoop> {
    const { file, readOnly } = await openImage(image, requestedReadOnly);
    await using backing = file;
    await using control = await open(`${dev}/loop-control`, constants.O_RDWR);
    const busy = new Map<string, number>();
    for (let attempt = 1; ; attempt++) {
      let name = `loop${await freeLoop(control.fd)}`;
      if ((busy.get(name) ?? 0) >= maxBusyPerDevice)
        name = (await listUnattached(sys)).find((one) => !busy.has(one)) ?? `loop${await addLoop(control.fd)}`;
      const attached = await tryAttach(name, backing, image, readOnly);
      if (!('busy' in attached)) return attached;
      if (attempt === maxAttachAttempts) throw attached.busy;
      busy.set(name, (busy.get(name) ?? 0) + 1);
      await clock.sleep(5 * Math.min(attempt, 20), signal);
    }
  }

  /** Undefined: the device is no longer attached to that file. */
  async function withDevice<T>(loop: Loop, scope: Scope, work: (fd: number) => Promise<T>): Promise<T | undefined> {
    const workOnDevice = async (): Promise<T | undefined> => {
      await using device = await holdIfSame(loop);
      return device && (await work(device.fd));
    };
    return await withDeadline(loop.node, scope, workOnDevice());
  }

  return {
    attach: (image, readOnly, scope) => withDeadline(image, scope, attach(image, readOnly, scope.signal)),
    hold: (loop, scope) => withDeadline(loop.node, scope, holdIfSame(loop)),
    detach: async (loop, scope) => (await withDevice(loop, scope, falseOnErrno('ENXIO', clearLoop))) === true,
    updateCapacity: async (loop, scope) => {
      await withDevice(loop, scope, updateLoopCapacity);
    },
    useDirectIo: async (loop, scope) =>
      (await withDevice(loop, scope, falseOnErrno('EINVAL', setLoopDirectIo))) === true,
  };
}

/** Devices without a file. */
async function listUnattached(sys: string): Promise<readonly string[]> {
  const names = (await readdir(sys)).filter((name) => /^loop\d+$/.test(name));
  const attached = new Set((await listAttachedLoops(sys)).map(({ name }) => name));
  return names.filter((name) => !attached.has(name));
}

/** False: the call failed with that errno. */
const falseOnErrno =
  (code: string, work: (fd: number) => Promise<unknown>) =>
  async (fd: number): Promise<boolean> => {
    try {
      await work(fd);
      return true;
    } catch (cause) {
      if (isErrno(cause, code)) return false;
      throw cause;
    }
  };

/** If the image is on a read-only file system, the device is read-only too. */
async function openImage(image: string, readOnly: boolean): Promise<{ file: FileHandle; readOnly: boolean }> {
  try {
    const flags = (readOnly ? constants.O_RDONLY : constants.O_RDWR) | constants.O_NOFOLLOW;
    return { file: await open(image, flags), readOnly };
  } catch (cause) {
    if (readOnly || !isErrno(cause, 'EROFS')) throw cause;
    return { file: await open(image, constants.O_RDONLY | constants.O_NOFOLLOW), readOnly: true };
  }
}

const mknodatNumbers = { x64: 259, arm64: 33 } as const;
const AT_FDCWD = -100;
const blockDeviceMode = 0o060600;
const functions = lazyBindings({
  mknodat: 'int64_t syscall(int64_t number, int64_t fd, const char *path, int64_t mode, int64_t device)',
});

/** The /dev of a container may lack nodes of devices that were added later. EPERM: it needs CAP_MKNOD, or the host's /dev. */
export async function makeNode(node: string, numbers: string): Promise<void> {
  try {
    await (await open(node, 0o10000000)).close();
  } catch (cause) {
    if (!isErrno(cause, 'ENOENT') || !(process.arch in mknodatNumbers)) throw cause;
    const [major = 0, minor = 0] = (await readFile(numbers, 'utf8')).split(':').map(Number);
    const device = (major << 8) | (minor & 0xff) | ((minor & ~0xff) << 12);
    const call = mknodatNumbers[process.arch as keyof typeof mknodatNumbers];
    if (Number(functions().mknodat(call, AT_FDCWD, node, blockDeviceMode, device)) === 0) return;
    const failure = new SystemError('mknod', libc().koffi.errno());
    if (failure.code !== 'EEXIST') throw failure;
  }
}

async function disposeResult(result: unknown): Promise<void> {
  if (typeof result === 'object' && result !== null && Symbol.asyncDispose in result)
    await (result as AsyncDisposable)[Symbol.asyncDispose]();
}

function tooSlow(what: string, cause: unknown): StowageError {
  return new StowageError(`the loop device of ${what} was not ready within ${deviceTimeoutMs / 1000} s`, {
    code: 'deadline',
    reason: 'loop-deadline',
    action: 'Check for a disk that does not answer (dmesg | tail), then retry. Retrying is safe.',
    cause,
  });
}
