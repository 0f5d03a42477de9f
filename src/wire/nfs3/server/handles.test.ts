import { createHmac, randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  createHandles,
  createHmacSha256,
  type HandleContents,
  type Handles,
  maxParentHashes,
  parentHash,
} from './handles.ts';

const key = randomBytes(32);
const createHandle = (handles: Handles, contents: HandleContents): Buffer =>
  Buffer.from(handles.create(contents), 'latin1');
const origin = fc.record({
  ino: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  birth: fc.bigInt({ min: 0n, max: 2n ** 63n }),
  parentHashes: fc.uint8Array({ maxLength: maxParentHashes }),
});

describe('a file handle', () => {
  test('holds its contents in at most 64 bytes', () => {
    const handles = createHandles(key);
    fc.assert(
      fc.property(origin, (contents) => {
        const handle = createHandle(handles, contents);
        expect(handle.length).toBeLessThanOrEqual(64);
        const opened = handles.open(handle);
        expect({ ...opened, parentHashes: [...(opened?.parentHashes ?? [])] }).toEqual({
          ...contents,
          parentHashes: [...contents.parentHashes],
        });
      }),
    );
  });

  test('is rejected if a bit is changed, or if it is truncated or extended', () => {
    const handles = createHandles(key);
    fc.assert(
      fc.property(origin, fc.nat(), (contents, position) => {
        const handle = createHandle(handles, contents);
        const forged = Buffer.from(handle);
        const bit = position % (handle.length * 8);
        forged[bit >> 3] = (forged[bit >> 3] as number) ^ (1 << (bit & 7));
        expect(handles.open(forged)).toBeUndefined();
        expect(handles.open(handle.subarray(0, position % handle.length))).toBeUndefined();
        expect(handles.open(Buffer.concat([handle, Buffer.alloc(1)]))).toBeUndefined();
      }),
    );
  });

  test('is rejected if it was made with another key', () => {
    const contents = { ino: 5n, birth: 6n, parentHashes: new Uint8Array([1, 2]) };
    expect(createHandles(randomBytes(32)).open(createHandle(createHandles(key), contents))).toBeUndefined();
  });

  test('is checked without exceptions, for any bytes', () => {
    const handles = createHandles(key);
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 64 }), (bytes) => {
        expect(handles.open(bytes)).toBeUndefined();
      }),
    );
  });
});

test('the authentication code is HMAC-SHA-256', () => {
  const code = createHmacSha256(key);
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), (message) => {
      expect(code(message)).toEqual(createHmac('sha256', key).update(message).digest());
    }),
  );
});

test('the parent hashes of neighbouring directories rarely collide', () => {
  const bytes = new Set(Array.from({ length: 64 }, (_, i) => parentHash(1_000_000n + BigInt(i))));
  expect(bytes.size).toBeGreaterThan(48);
});
