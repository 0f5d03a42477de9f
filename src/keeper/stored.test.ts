import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { decode, encode, type KeeperState, type Kind, type MessageOf } from './protocol.ts';

/**
 * Messages that 0.1 sends. During an upgrade the peers have different versions, so these lines never change. Add an optional field, or a new
 * kind that is never sent to an older peer.
 */
const lines = readFileSync(new URL('fixtures/messages-1.jsonl', import.meta.url), 'utf8')
  .split('\n')
  .slice(0, -1);

const ask = 7;
const worker = { pid: 42, version: '0.1.0', ready: true };
const state: KeeperState = {
  doing: 'serving',
  active: worker,
  standby: null,
  mounts: 2,
  sockets: 3,
  takeovers: 4,
  deaths: 5,
  report: 'all is well',
  shares: true,
  isBorrowed: false,
};
const mounts = [{ mount: 'sv1-1', spec: { version: 1 } }] as const;

/** One message of each kind, and the number of descriptors that come with it. */
const samples: { readonly [K in Kind]: readonly [message: Omit<MessageOf<K>, 'kind'>, descriptors: number] } = {
  hello: [{ role: 'data path', pid: 42, version: '0.1.0' }, 1],
  adopt: [{ ask, ...mounts[0] }, 1],
  drop: [{ ask, mount: 'sv1-1' }, 0],
  flush: [{ ask, mount: 'sv1-1', ms: 5000 }, 0],
  list: [{ ask, after: '' }, 0],
  status: [{ ask }, 0],
  upgrade: [{ ask, program: '/usr/lib/stowage/data-path.mjs' }, 0],
  end: [{ ask }, 0],
  copies: [{ ask }, 0],
  restore: [{ ask }, 0],
  flushed: [{ ask, files: 1 }, 0],
  done: [{ ask }, 0],
  failed: [{ ask, reason: 'out-of-reach', text: 'why' }, 0],
  listed: [{ ask, mounts: ['sv1-1'], more: true }, 0],
  state: [{ ask, state }, 0],
  serve: [{ as: 'successor', path: '/run/stowage/keepers/a', mounts: 2, sockets: 3 }, 1],
  everything: [{ mounts: 2, sockets: 3 }, 1],
  add: [{ mounts }, 1],
  holding: [{ sockets: [{ socket: '1', about: '10.0.0.5:2049' }] }, 1],
  remove: [{ mount: 'sv1-1' }, 0],
  stop: [{}, 0],
  moveTo: [{ path: '/run/stowage/keepers/b' }, 0],
  welcome: [{}, 0],
  refused: [{ reason: 'full' }, 0],
  ready: [{}, 0],
  stopped: [{}, 0],
  letGo: [{ socket: '1' }, 0],
  ended: [{ mount: 'sv1-1', unserved: true }, 0],
  report: [{ text: 'all is well' }, 0],
  handover: [{ path: '/run/stowage/keepers/b' }, 0],
  taking: [{}, 0],
  yours: [{}, 0],
};
const messages = Object.entries(samples).map(([kind, [message, descriptors]]) => ({
  message: { kind, ...message } as MessageOf<Kind>,
  descriptors,
}));

test('every message is byte for byte that of 0.1', () => {
  expect(messages.map(({ message }) => encode(message).toString())).toEqual(lines);
});

test.each(messages.map((one, at) => [one.message.kind, one, lines[at] ?? ''] as const))(
  'reads the message %s of 0.1',
  (_, { message, descriptors }, line) => {
    expect(decode(Buffer.from(line), descriptors)).toEqual({ v: 1, ...message });
    expect(() => decode(Buffer.from(line), descriptors + 1)).toThrow('descriptors');
  },
);

describe('the values in messages', () => {
  const accepts = (message: unknown, descriptors = 0): boolean => {
    try {
      decode(Buffer.from(JSON.stringify({ v: 1, ...(message as object) })), descriptors);
      return true;
    } catch {
      return false;
    }
  };

  test.each(['agent', 'keeper', 'data path'])('the role %s is accepted', (role) => {
    expect(accepts({ kind: 'hello', role, pid: 1, version: '1' }, role === 'data path' ? 1 : 0)).toBe(true);
  });

  test.each(['settling', 'idle', 'serving', 'taking over', 'failing', 'moving'])(
    'the keeper state %s is accepted',
    (doing) => {
      expect(accepts({ kind: 'state', ask, state: { ...state, doing } })).toBe(true);
    },
  );

  test.each(['first', 'successor'])('a data path can be told to serve as %s', (as) => {
    expect(accepts({ kind: 'serve', as, path: '/a', mounts: 0, sockets: 0 }, 1)).toBe(true);
  });

  test('older peers may omit fields that were added later', () => {
    const { shares: _shares, isBorrowed: _isBorrowed, ...older } = state;
    expect(accepts({ kind: 'state', ask, state: older })).toBe(true);
    expect(accepts({ kind: 'ended', mount: 'sv1-1' })).toBe(true);
  });
});
