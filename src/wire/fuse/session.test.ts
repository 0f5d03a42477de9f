import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createMemoryFileSystem } from '#testing/fakes/memory-file-system.ts';
import { inHeaderSize, opcode, setattrField } from './abi.ts';
import { Errno, errno } from './errno.ts';
import type { Message } from './message.ts';
import type { Operations } from './operations.ts';
import { createSession } from './session.ts';

const testInitOptions = {
  flags: [],
  maxWrite: 4096,
  maxReadahead: 4096,
  maxBackground: 8,
  timeGranularity: 1,
} as const;

function message(code: number, args: Uint8Array, unique = 5): Message {
  const buffer = Buffer.alloc(inHeaderSize + args.length);
  buffer.writeUInt32LE(buffer.length, 0);
  buffer.writeUInt32LE(code, 4);
  buffer.writeUInt32LE(unique, 8);
  buffer.writeUInt32LE(1, 16);
  buffer.set(args, inHeaderSize);
  return { buffer, view: new DataView(buffer.buffer, buffer.byteOffset, buffer.length), end: buffer.length };
}

/** Records the outcome of each request, in order: the error code of its reply, or `finished` if it has no reply. */
function createTestSession(operations: Partial<Operations>) {
  const outcomes: (number | 'finished')[] = [];
  const faults: unknown[] = [];
  const session = createSession({
    operations,
    initOptions: testInitOptions,
    store: {
      reply: (_place, bytes) => outcomes.push(0 - bytes.readInt32LE(4)),
      finished: () => outcomes.push('finished'),
    },
    onFault: (_operation, cause) => faults.push(cause),
  });
  return { session, outcomes, faults };
}

describe('a session', () => {
  test('answers a truncated request with an error without executing it', () => {
    const { session, outcomes } = createTestSession({
      write: () => expect.fail('must not be called'),
      mkdir: () => expect.fail('must not be called'),
    });
    session.handle(0, message(opcode.write, Buffer.alloc(39)));
    session.handle(0, message(opcode.mkdir, Buffer.from('12345678no NUL at the end')));
    // A WRITE whose size is larger than its data.
    const long = Buffer.alloc(44);
    long.writeUInt32LE(1000, 16);
    session.handle(0, message(opcode.write, long));
    expect(outcomes).toEqual([errno.EPROTO, errno.EPROTO, errno.EPROTO]);
    expect(session.pending).toBe(0);
  });

  test('answers unknown opcodes with ENOSYS', () => {
    const { session, outcomes } = createTestSession({});
    session.handle(0, message(4711, Buffer.alloc(8)));
    session.handle(0, message(opcode.statfs, Buffer.alloc(0)));
    session.handle(0, message(opcode.ioctl, Buffer.alloc(64)));
    expect(outcomes).toEqual([errno.ENOSYS, errno.ENOSYS, errno.ENOSYS]);
  });

  test('turns unexpected exceptions into EIO and reports them', async () => {
    const { session, outcomes, faults } = createTestSession({
      statfs: async () => Promise.reject(new TypeError('a fault of ours')),
      readlink: () => {
        throw new RangeError('another');
      },
      unlink: () => {
        throw new Errno('EACCES');
      },
    });
    session.handle(0, message(opcode.statfs, Buffer.alloc(0)));
    session.handle(1, message(opcode.readlink, Buffer.alloc(0)));
    session.handle(2, message(opcode.unlink, Buffer.from('name\0')));
    await new Promise(setImmediate);
    expect(outcomes.toSorted()).toEqual([errno.EACCES, errno.EIO, errno.EIO].toSorted());
    expect(faults.map(String).toSorted()).toEqual(['RangeError: another', 'TypeError: a fault of ours']);
  });

  test('aborts the signal of an interrupted request, also if the operation reads the signal after the interrupt', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const { session, outcomes } = createTestSession({
      statfs: async (_node, { signal }) => {
        await promise;
        signal.throwIfAborted();
        return expect.fail('it was interrupted');
      },
      readlink: async (_node, request) => {
        await promise;
        request.signal.throwIfAborted();
        return expect.fail('it was interrupted');
      },
    });
    const interrupt = (unique: number): Buffer => {
      const args = Buffer.alloc(8);
      args.writeUInt32LE(unique, 0);
      return args;
    };
    session.handle(0, message(opcode.statfs, Buffer.alloc(0), 8));
    session.handle(1, message(opcode.readlink, Buffer.alloc(0), 10));
    session.handle(2, message(opcode.interrupt, interrupt(8), 9));
    session.handle(2, message(opcode.interrupt, interrupt(10), 11));
    session.handle(2, message(opcode.interrupt, interrupt(12), 13));
    resolve();
    await new Promise(setImmediate);
    expect(outcomes).toEqual(['finished', 'finished', 'finished', errno.EINTR, errno.EINTR]);
  });

  test('reports each interrupt to the store once, and takes over the interrupt of an inherited request', async () => {
    const interrupted: number[] = [];
    const outcomes: number[] = [];
    const session = createSession({
      initOptions: testInitOptions,
      operations: {
        statfs: async (_node, { signal }) => {
          if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve));
          throw new Errno('EINTR');
        },
      },
      store: {
        reply: (place, bytes) => outcomes.push(place, -bytes.readInt32LE(4)),
        finished: () => undefined,
        interrupted: (place) => void interrupted.push(place),
      },
    });
    const args = Buffer.alloc(8);
    args.writeUInt32LE(8, 0);
    session.handle(3, message(opcode.statfs, Buffer.alloc(0), 8));
    session.handle(4, message(opcode.interrupt, args, 9));
    await new Promise(setImmediate);
    session.handle(4, message(opcode.interrupt, args, 9));
    session.handle(5, message(opcode.statfs, Buffer.alloc(0), 10), { isInterrupted: true });
    await new Promise(setImmediate);
    expect([interrupted, outcomes]).toEqual([[3], [3, errno.EINTR, 5, errno.EINTR]]);
  });

  test('answers offsets beyond 2^53 itself, and passes smaller ones to the file system', () => {
    const calls: string[] = [];
    const recordCall =
      (name: string) =>
      (...args: readonly unknown[]): never => {
        calls.push(`${name} ${JSON.stringify(args.slice(0, -1))}`);
        throw new Errno('EAGAIN');
      };
    const { session, outcomes, faults } = createTestSession({
      read: recordCall('read'),
      write: recordCall('write'),
      setattr: recordCall('setattr'),
      fallocate: recordCall('fallocate'),
      lseek: recordCall('lseek'),
      copyFileRange: recordCall('copy'),
    });
    const maxOffset = BigInt(Number.MAX_SAFE_INTEGER);
    const args = (size: number, at: number, value: bigint, flags = 0): Buffer => {
      const encoded = Buffer.alloc(size);
      encoded.writeUInt32LE(flags, 0);
      encoded.writeBigUInt64LE(value, at);
      return encoded;
    };
    const handleAll = (value: bigint): void => {
      session.handle(0, message(opcode.write, args(40, 8, value)));
      session.handle(0, message(opcode.setattr, args(88, 16, value, setattrField.size)));
      session.handle(0, message(opcode.fallocate, args(32, 8, value)));
      session.handle(0, message(opcode.fallocate, args(32, 16, value)));
      session.handle(0, message(opcode.lseek, args(24, 8, value)));
      session.handle(0, message(opcode.copyFileRange, args(56, 8, value)));
      session.handle(0, message(opcode.copyFileRange, args(56, 32, value)));
      session.handle(0, message(opcode.read, args(40, 8, value)));
    };
    for (const value of [maxOffset + 1n, 2n ** 63n - 1n, 2n ** 64n - 1n]) {
      handleAll(value);
      const { EFBIG, ENXIO, EOVERFLOW } = errno;
      expect(outcomes.splice(0)).toEqual([EFBIG, EFBIG, EFBIG, EFBIG, ENXIO, EOVERFLOW, EFBIG, 0]);
    }
    // The last byte of this WRITE would be beyond the limit.
    const long = Buffer.alloc(41);
    long.writeBigUInt64LE(maxOffset, 8);
    long.writeUInt32LE(1, 16);
    session.handle(0, message(opcode.write, long));
    expect(outcomes.splice(0)).toEqual([errno.EFBIG]);
    expect(calls).toEqual([]);
    handleAll(maxOffset);
    expect(outcomes).toEqual(Array(8).fill(errno.EAGAIN));
    expect(calls).toHaveLength(8);
    for (const one of calls) expect(one).toContain(`${maxOffset}`);
    expect(faults).toEqual([]);
  });

  test('refuses a kernel that is too old', () => {
    const { session, outcomes } = createTestSession({});
    const args = Buffer.alloc(16);
    args.writeUInt32LE(7, 0);
    args.writeUInt32LE(30, 4);
    session.handle(0, message(opcode.init, args));
    expect(outcomes).toEqual([errno.EPROTO]);
  });

  test('handles each request of any bytes exactly once, and throws nothing', async () => {
    const codes = fc.oneof(fc.constantFrom(...Object.values(opcode)), fc.nat(5000));
    await fc.assert(
      fc.asyncProperty(codes, fc.uint8Array({ maxLength: 300 }), async (code, args) => {
        const { session, outcomes } = createTestSession(createMemoryFileSystem().operations);
        session.handle(0, message(code, args));
        await new Promise(setImmediate);
        expect(outcomes).toHaveLength(1);
        expect(session.pending).toBe(0);
      }),
      { numRuns: 2000 },
    );
  });
});
