import { describe, expect, test } from 'vitest';
import { decode, encode, type Message, maxMessageBytes, ProtocolError } from './protocol.ts';

const secret = 'hunter2';
const raw = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));
const adopt: Message = { kind: 'adopt', ask: 1, mount: 'm', spec: { password: secret } };

test('decoding returns what was encoded', () => {
  expect(decode(encode(adopt), 1)).toEqual({ v: 1, ...adopt });
});

test('unknown fields are ignored', () => {
  expect(decode(raw({ v: 1, kind: 'remove', mount: 'm', since: 'later' }), 0)).toMatchObject({ kind: 'remove' });
});

describe('decode() rejects, without quoting it,', () => {
  const state = { doing: 'idle', active: { pid: 'x' }, standby: null };
  test.each([
    ['no JSON', Buffer.from(`{"password":"${secret}`), 0, 'a message is not a JSON object'],
    ['no object', raw([secret]), 0, 'a message is not a JSON object'],
    ['null', raw(null), 0, 'a message is not a JSON object'],
    ['another version', raw({ v: 2, ...adopt }), 1, 'a message is not of version 1'],
    ['no version', raw(adopt), 1, 'a message is not of version 1'],
    ['an unknown kind', raw({ v: 1, kind: secret }), 0, 'a message is of an unknown kind'],
    [
      'a kind that is a property of every object',
      raw({ v: 1, kind: 'constructor' }),
      0,
      'a message is of an unknown kind',
    ],
    ['no name', raw({ v: 1, ...adopt, mount: '' }), 1, 'a message (adopt) has missing or invalid fields'],
    [
      'a long name',
      raw({ v: 1, ...adopt, mount: 'm'.repeat(256) }),
      1,
      'a message (adopt) has missing or invalid fields',
    ],
    ['no spec', raw({ v: 1, ...adopt, spec: undefined }), 1, 'a message (adopt) has missing or invalid fields'],
    ['a negative number', raw({ v: 1, ...adopt, ask: -1 }), 1, 'a message (adopt) has missing or invalid fields'],
    [
      'an unknown role',
      raw({ v: 1, kind: 'hello', role: 'king', pid: 1, version: '1' }),
      0,
      'a message (hello) has missing or invalid fields',
    ],
    ['no list', raw({ v: 1, kind: 'add', mounts: { length: 0 } }), 0, 'a message (add) has missing or invalid fields'],
    [
      'invalid inner fields',
      raw({ v: 1, kind: 'state', ask: 0, state }),
      0,
      'a message (state) has missing or invalid fields',
    ],
    ['no descriptor', encode(adopt), 0, 'a message (adopt) came with 0 descriptors'],
    ['a stray descriptor', encode({ kind: 'stop' }), 1, 'a message (stop) came with 1 descriptors'],
    [
      'too many descriptors',
      raw({ v: 1, kind: 'add', mounts: [{ mount: 'm', spec: 1 }] }),
      2,
      'a message (add) came with 2 descriptors',
    ],
    ['too many bytes', Buffer.alloc(maxMessageBytes + 1, ' '), 0, 'a message is too long'],
  ])('a message with this fault: %s', (_, bytes, descriptors, message) => {
    expect(() => decode(bytes, descriptors)).toThrow(new ProtocolError(message));
  });
});

test("messages longer than the receiver's limit are not sent", () => {
  const long: Message = { ...adopt, spec: 'x'.repeat(maxMessageBytes) } as Message;
  expect(() => encode(long)).toThrow(new ProtocolError('a message (adopt) is too long'));
});
