import { closeSync } from 'node:fs';
import { constants } from 'node:os';
import { checkResult, type ForeignFunction, libc, SystemError } from './libc.ts';

/**
 * Unix sockets that preserve message boundaries (SOCK_SEQPACKET) and pass descriptors (SCM_RIGHTS), which Node's sockets do not. Blocking
 * calls run on libuv's thread pool: each occupies a thread.
 */

export interface DescriptorMessage {
  readonly bytes: Buffer;
  readonly descriptors: readonly number[];
}

/** SCM_MAX_FD: the kernel's limit for one message. */
const maxDescriptors = 253;
const maxMessageBytes = 256 * 1024;

const afUnix = 1;
const sockSeqpacket = 5;
const sockCloexec = 0o2000000;
const sockNonblock = 0o4000;
const fSetfl = 4;
const msgFlags = { noSignal: 0x4000, dontWait: 0x40, closeOnExec: 0x4000_0000 } as const;
const solSocket = 1;
const scmRights = 1;
const truncated = { data: 0x20, control: 8 } as const;
const controlHeaderBytes = 16;
const maxControlBytes = controlHeaderBytes + 4 * maxDescriptors + 4;

interface SocketCalls {
  readonly socket: ForeignFunction;
  readonly bind: ForeignFunction;
  readonly connect: ForeignFunction;
  readonly listen: ForeignFunction;
  readonly accept: ForeignFunction;
  readonly send: ForeignFunction;
  readonly receive: ForeignFunction;
  readonly shutdown: ForeignFunction;
  readonly control: ForeignFunction;
}

let bound: SocketCalls | undefined;

function calls(): SocketCalls {
  bound ??= bindCalls();
  return bound;
}

function bindCalls(): SocketCalls {
  const { koffi, func } = libc();
  koffi.struct('stowage_iovec', { base: 'uint8_t *', length: 'size_t' });
  koffi.struct('stowage_message', {
    name: 'void *',
    nameLength: 'uint32_t',
    parts: 'stowage_iovec *',
    partCount: 'size_t',
    control: 'uint8_t *',
    controlLength: 'size_t',
    flags: 'int',
  });
  return {
    socket: func('int socket(int family, int type, int protocol)'),
    bind: func('int bind(int fd, void *address, uint32_t length)'),
    connect: func('int connect(int fd, void *address, uint32_t length)'),
    listen: func('int listen(int fd, int waiting)'),
    accept: func('int accept4(int fd, void *address, void *length, int flags)'),
    send: func('int64_t sendmsg(int fd, stowage_message *message, int flags)'),
    receive: func('int64_t recvmsg(int fd, _Inout_ stowage_message *message, int flags)'),
    shutdown: func('int shutdown(int fd, int how)'),
    control: func('int fcntl(int fd, int command, int64_t value)'),
  };
}

/** sun_path without its terminator. */
const maxSocketPathBytes = 107;

function addressOf(path: string): Buffer {
  const address = Buffer.alloc(2 + maxSocketPathBytes + 1);
  address.writeUInt16LE(afUnix);
  if (address.write(path, 2) !== Buffer.byteLength(path)) throw new SystemError('socket', constants.errno.ENAMETOOLONG);
  return address;
}

function openSocket(flags: number, use: (fd: number) => void): number {
  const fd = checkResult('socket', calls().socket(afUnix, sockSeqpacket | sockCloexec | flags, 0));
  try {
    use(fd);
    return fd;
  } catch (cause) {
    closeSync(fd);
    throw cause;
  }
}

export function listenAt(path: string): number {
  return openSocket(0, (fd) => {
    const address = addressOf(path);
    checkResult('bind', calls().bind(fd, address, address.length));
    checkResult('listen', calls().listen(fd, 16));
  });
}

/**
 * Connects without waiting, or throws: ENOENT or ECONNREFUSED if no process listens, EAGAIN if the backlog is full. A blocking
 * connect would wait then, and block the whole process.
 */
export function connectTo(path: string): number {
  return openSocket(sockNonblock, (fd) => {
    const address = addressOf(path);
    checkResult('connect', calls().connect(fd, address, address.length));
    checkResult('fcntl', calls().control(fd, fSetfl, 0));
  });
}

/** The next connection. Undefined: the listening socket was shut down. */
export async function acceptConnection(listeningFd: number): Promise<number | undefined> {
  const fd = await callAsync((done) => calls().accept.async(listeningFd, null, null, sockCloexec, done));
  return fd < 0 ? undefined : fd;
}

/** Ends every pending call on the socket, here and on the other end. close(2) alone would not. */
export function shutDown(fd: number): void {
  calls().shutdown(fd, 2);
}

/** Sends without waiting, or throws: EAGAIN if the other end does not read, EPIPE or ECONNRESET if it is gone. */
export function sendMessage(fd: number, { bytes, descriptors }: DescriptorMessage): void {
  if (bytes.length > maxMessageBytes || descriptors.length > maxDescriptors)
    throw new SystemError('sendmsg', constants.errno.EMSGSIZE);
  const control = Buffer.alloc(controlHeaderBytes + ((4 * descriptors.length + 7) & ~7));
  control.writeBigUInt64LE(BigInt(controlHeaderBytes + 4 * descriptors.length), 0);
  control.writeInt32LE(solSocket, 8);
  control.writeInt32LE(scmRights, 12);
  for (const [i, descriptor] of descriptors.entries()) control.writeInt32LE(descriptor, controlHeaderBytes + 4 * i);
  const hasDescriptors = descriptors.length > 0;
  const message = {
    name: null,
    nameLength: 0,
    parts: [{ base: bytes, length: bytes.length }],
    partCount: 1,
    control: hasDescriptors ? control : null,
    controlLength: hasDescriptors ? control.length : 0,
    flags: 0,
  };
  checkResult('sendmsg', calls().send(fd, message, msgFlags.noSignal | msgFlags.dontWait));
}

/** The next message. Undefined: the other end is gone, or the socket was shut down here. */
export const receiveMessage = (fd: number): Promise<DescriptorMessage | undefined> => createReceiver(fd)();

/** Receives repeatedly into the same buffers. */
export function createReceiver(fd: number): () => Promise<DescriptorMessage | undefined> {
  const bytes = Buffer.alloc(maxMessageBytes);
  const control = Buffer.alloc(maxControlBytes);
  return () => receiveInto(fd, bytes, control);
}

async function receiveInto(fd: number, bytes: Buffer, control: Buffer): Promise<DescriptorMessage | undefined> {
  const message = {
    name: null,
    nameLength: 0,
    parts: [{ base: bytes, length: bytes.length }],
    partCount: 1,
    control,
    controlLength: control.length,
    flags: 0,
  };
  const length = await callAsync((done) => calls().receive.async(fd, message, msgFlags.closeOnExec, done));
  // 0 means the end of the stream, since no program of ours sends empty messages.
  if (length <= 0) return undefined;
  const descriptors = [...descriptorsIn(control.subarray(0, message.controlLength))];
  if ((message.flags & (truncated.data | truncated.control)) !== 0) {
    for (const descriptor of descriptors) closeSync(descriptor);
    throw new SystemError('recvmsg', constants.errno.EMSGSIZE);
  }
  return { bytes: Buffer.from(bytes.subarray(0, length)), descriptors };
}

function* descriptorsIn(control: Buffer): Generator<number> {
  if (control.length < controlHeaderBytes) return;
  const end = Math.min(Number(control.readBigUInt64LE(0)), control.length);
  if (control.readInt32LE(8) !== solSocket || control.readInt32LE(12) !== scmRights) return;
  for (let offset = controlHeaderBytes; offset + 4 <= end; offset += 4) yield control.readInt32LE(offset);
}

async function callAsync(
  start: (done: (error: Error | null, result: number | bigint) => void) => void,
): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  start((error, result) => (error === null ? resolve(Number(result)) : reject(error)));
  return await promise;
}
