import { isErrno } from '#base/errno.ts';
import { lazyBindings, libc, SystemError } from '#base/linux/libc.ts';

/**
 * The ioctls of the kernel's loop driver (linux/loop.h), each for one device. Every call runs on a thread of Node's pool, since it can wait
 * for the disk that the file is on. `losetup` and `mount -o loop` are not used, because they query every loop device of the machine: one
 * whose file system stopped answering would block them.
 */

const request = {
  setFd: 0x4c00,
  clearFd: 0x4c01,
  setStatus64: 0x4c04,
  getStatus64: 0x4c05,
  setCapacity: 0x4c07,
  setDirectIo: 0x4c08,
  configure: 0x4c0a,
  add: 0x4c80,
  getFree: 0x4c82,
} as const;

const flag = { readOnly: 1, autoclear: 4, directIo: 16 } as const;
/** struct loop_info64. */
const loopInfoBytes = 232;
const [flagsOffset, fileNameOffset, fileNameBytes] = [52, 56, 64];
/** struct loop_config: the file's descriptor, the block size, a loop_info64, and reserved space. */
const loopConfigBytes = 304;
const infoOffset = 8;
/** The default of `losetup`. With 0, newer kernels take the block size of the underlying disk, which a file system in the image may not support. */
const loopBlockBytes = 512;

const calls = lazyBindings({
  pointer: 'int ioctl(int fd, unsigned long request, void *argument)',
  number: 'int ioctl(int fd, unsigned long request, int64_t argument)',
});

async function ioctl(name: keyof typeof request, fd: number, argument: Buffer | number): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const call = typeof argument === 'number' ? calls().number : calls().pointer;
  call.async(fd, request[name], argument, (failed: Error | null, result: number) => {
    if (failed !== null) reject(failed);
    else if (result < 0) reject(new SystemError(`ioctl ${name}`, libc().koffi.errno()));
    else resolve(result);
  });
  return await promise;
}

export interface LoopSettings {
  /** The descriptor of the open image. */
  readonly backingFd: number;
  /** The image's path, for programs that list loop devices. */
  readonly file: string;
  readonly readOnly: boolean;
}

/** Returns the number of a free device; another program may take it at any moment. `control`: /dev/loop-control. */
export const freeLoop = (control: number): Promise<number> => ioctl('getFree', control, 0);

/** Creates a device and returns its number. */
export const addLoop = (control: number): Promise<number> => ioctl('add', control, -1);

/** struct loop_info64 with autoclear: the kernel detaches the device with its last user. */
export function loopInfo({ file, readOnly }: Pick<LoopSettings, 'file' | 'readOnly'>): Buffer {
  const info = Buffer.alloc(loopInfoBytes);
  info.writeUInt32LE(flag.autoclear | flag.directIo | (readOnly ? flag.readOnly : 0), flagsOffset);
  info.write(truncatedName(file), fileNameOffset);
  return info;
}

/** The part of the path that the kernel stores: 63 bytes. */
export const truncatedName = (file: string): string => {
  const name = Buffer.alloc(fileNameBytes);
  return name.toString('utf8', 0, name.write(file, 0, fileNameBytes - 1));
};

/**
 * Attaches the file. The kernel detaches it when the last descriptor of the device is closed and nothing is mounted from it, so a
 * killed process leaves no device. EBUSY: another program took the device.
 */
export async function configureLoop(device: number, settings: LoopSettings): Promise<void> {
  const config = Buffer.alloc(loopConfigBytes);
  config.writeUInt32LE(settings.backingFd, 0);
  config.writeUInt32LE(loopBlockBytes, 4);
  const info = loopInfo(settings);
  info.copy(config, infoOffset);
  try {
    await ioctl('configure', device, config);
  } catch (cause) {
    if (!isErrno(cause, 'EINVAL', 'ENOTTY')) throw cause;
    await configureOldLoop(device, settings.backingFd, info);
  }
}

/** For kernels before 5.8. A kill between the two calls leaves the device attached; the next start reaps it. */
export async function configureOldLoop(device: number, backingFd: number, info: Buffer): Promise<void> {
  await ioctl('setFd', device, backingFd);
  try {
    await ioctl('setStatus64', device, info);
  } catch (cause) {
    await ioctl('clearFd', device, 0);
    throw cause;
  }
  // If the underlying file system does not support direct I/O, the kernel uses its page cache.
  await setLoopDirectIo(device).catch(() => undefined);
}

export interface LoopFile {
  /** The device number of the file system that the file is on. */
  readonly device: bigint;
  readonly inode: bigint;
  /** The path at which it was attached, truncated by the kernel. It stays when the file is renamed. */
  readonly attachedPath: string;
}

/** Returns the file behind the device. The kernel asks that file's file system, so call it only for devices that can be ours. */
export async function loopFile(device: number): Promise<LoopFile> {
  const info = Buffer.alloc(loopInfoBytes);
  await ioctl('getStatus64', device, info);
  const name = info.subarray(fileNameOffset, fileNameOffset + fileNameBytes);
  const attachedPath = name.toString('utf8', 0, name.indexOf(0));
  return { device: info.readBigUInt64LE(0), inode: info.readBigUInt64LE(8), attachedPath };
}

/** Clears autoclear: the file stays attached when no process has the device open. */
export async function keepLoopAttached(device: number): Promise<void> {
  const info = Buffer.alloc(loopInfoBytes);
  await ioctl('getStatus64', device, info);
  info.writeUInt32LE(info.readUInt32LE(flagsOffset) & ~flag.autoclear, flagsOffset);
  await ioctl('setStatus64', device, info);
}

/** Updates the device's size to the file's current size. */
export const updateLoopCapacity = async (device: number): Promise<unknown> => await ioctl('setCapacity', device, 0);

/** EINVAL: the underlying file system does not support direct I/O. */
export const setLoopDirectIo = async (device: number): Promise<unknown> => await ioctl('setDirectIo', device, 1);

/** If another process has the device open, the kernel detaches it with the last close. ENXIO: no file is attached. */
export const clearLoop = async (device: number): Promise<unknown> => await ioctl('clearFd', device, 0);
