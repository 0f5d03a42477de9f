import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, fstatSync, mkdtempSync, openSync, readSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { acceptConnection, connectTo, listenAt, receiveMessage, sendMessage, shutDown } from './descriptor-sockets.ts';
import { createMemory, growMemory, mapMemory } from './shared-memory.ts';
import { socketPair } from './socket-pair.ts';

const bufferOf = (words: string): Buffer => Buffer.from(words);

describe('shared memory (memfd)', () => {
  test('a write through one mapping is visible through another', () => {
    const fd = createMemory('test', 8192);
    const [one, other] = [mapMemory(fd, 0, 8192), mapMemory(fd, 4096, 4096)];
    new Uint8Array(one.bytes)[5000] = 7;
    expect(new Uint8Array(other.bytes)[904]).toBe(7);
    closeSync(fd);
    one[Symbol.dispose]();
    other[Symbol.dispose]();
  });

  test('keeps what a process wrote before it was killed', async () => {
    const fd = createMemory('test', 4096);
    const script = `
      import { mapMemory } from ${JSON.stringify(import.meta.resolve('./shared-memory.ts'))};
      new Uint8Array(mapMemory(3, 0, 4096).bytes).set(Buffer.from('still here'), 100);
      process.kill(process.pid, 'SIGKILL');`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
      stdio: ['ignore', 'inherit', 'inherit', fd],
    });
    expect(await once(child, 'exit')).toEqual([null, 'SIGKILL']);
    using mapping = mapMemory(fd, 0, 4096);
    expect(Buffer.from(mapping.bytes, 100, 10).toString()).toBe('still here');
    closeSync(fd);
  });

  test('can grow, be populated and be freed', () => {
    const fd = createMemory('test', 4096);
    growMemory(fd, 3 * 4096);
    using mapping = mapMemory(fd, 0, 3 * 4096);
    mapping.populate(0, 3 * 4096);
    const bytes = new Uint8Array(mapping.bytes);
    bytes.fill(1);
    mapping.discard(4096, 4096);
    expect([bytes[4095], bytes[4096], bytes[8191], bytes[8192]]).toEqual([1, 0, 0, 1]);
    closeSync(fd);
  });

  test('can be populated without MADV_POPULATE_WRITE, and keeps its content', () => {
    const fd = createMemory('test', 4 * 4096);
    using mapping = mapMemory(fd, 0, 4 * 4096);
    const bytes = new Uint8Array(mapping.bytes);
    bytes[9000] = 7;
    // Kernels before 5.14 return EINVAL; this one does so for an address that is not page-aligned (madvise(2)).
    mapping.populate(8, 3 * 4096);
    expect(fstatSync(fd).blocks * 512).toBe(4 * 4096);
    expect(bytes.every((byte, offset) => byte === (offset === 9000 ? 7 : 0))).toBe(true);
    closeSync(fd);
  });

  test('an invalid descriptor gives an error like those of Node', () => {
    expect(() => mapMemory(-1, 0, 4096)).toThrow(expect.objectContaining({ code: 'EBADF', syscall: 'mmap' }));
  });
});

describe('sockets that pass descriptors', () => {
  test('a message arrives whole, with its descriptors', async () => {
    const [local, remote] = socketPair();
    const folder = mkdtempSync(join(tmpdir(), 'stowage-linux-'));
    const file = openSync(join(folder, 'file'), 'w+');
    writeSync(file, 'content');
    sendMessage(local, { bytes: bufferOf('one'), descriptors: [file, file] });
    sendMessage(local, { bytes: bufferOf('two'), descriptors: [] });
    const first = await receiveMessage(remote);
    expect(first?.bytes.toString()).toBe('one');
    expect(first?.descriptors).toHaveLength(2);
    const [descriptor = -1, second = -1] = first?.descriptors ?? [];
    expect(descriptor).not.toBe(file);
    const content = Buffer.alloc(7);
    readSync(descriptor, content, 0, 7, 0);
    expect(content.toString()).toBe('content');
    expect(await receiveMessage(remote)).toEqual({ bytes: bufferOf('two'), descriptors: [] });
    closeSync(local);
    expect(await receiveMessage(remote)).toBeUndefined();
    for (const fd of [remote, file, descriptor, second]) closeSync(fd);
    rmSync(folder, { recursive: true });
  });

  test('a listener at a path accepts connections, and can stop waiting', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'stowage-linux-'));
    const path = join(folder, 'socket');
    expect(() => connectTo(path)).toThrow(expect.objectContaining({ code: 'ENOENT' }));
    const listening = listenAt(path);
    const waiting = acceptConnection(listening);
    const client = connectTo(path);
    const server = (await waiting) ?? -1;
    sendMessage(client, { bytes: bufferOf('hello'), descriptors: [] });
    expect((await receiveMessage(server))?.bytes.toString()).toBe('hello');
    const [pendingAccept, pendingReceive] = [acceptConnection(listening), receiveMessage(server)];
    shutDown(listening);
    shutDown(server);
    expect(await pendingAccept).toBeUndefined();
    expect(await pendingReceive).toBeUndefined();
    for (const fd of [listening, client, server]) closeSync(fd);
    expect(() => connectTo(path)).toThrow(expect.objectContaining({ code: 'ECONNREFUSED' }));
    rmSync(folder, { recursive: true });
  });

  test('sending does not block when the buffer is full', () => {
    const [local, remote] = socketPair();
    const send = (): void => {
      for (let i = 0; i < 10_000; i++) sendMessage(local, { bytes: Buffer.alloc(60_000), descriptors: [] });
    };
    expect(send).toThrow(expect.objectContaining({ code: 'EAGAIN' }));
    closeSync(remote);
    // The buffer is full of unread messages; afterwards EPIPE.
    expect(send).toThrow(expect.objectContaining({ code: 'ECONNRESET' }));
    expect(send).toThrow(expect.objectContaining({ code: 'EPIPE' }));
    closeSync(local);
  });

  test('refuses a path that is too long for a socket', () => {
    expect(() => listenAt(`/tmp/${'x'.repeat(120)}`)).toThrow(expect.objectContaining({ code: 'ENAMETOOLONG' }));
  });
});
