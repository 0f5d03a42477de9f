import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createPendingCalls } from './pending-calls.ts';
import type { Call } from './transport.ts';

const call = (xid: number): Call => ({ xid, next: undefined }) as Call;

test('holds the same calls as a Map after any inserts and deletes', () => {
  // Few places, so that many share one, and enough calls that it grows.
  const shared = fc.nat(5).map((i) => i * 1024);
  const xid = fc.oneof({ weight: 2, arbitrary: shared }, fc.nat(300), fc.nat(0x7fff_ffff));
  const step = fc.record({ xid, adds: fc.oneof({ weight: 2, arbitrary: fc.constant(true) }, fc.constant(false)) });
  fc.assert(
    fc.property(fc.array(step, { minLength: 300, maxLength: 400 }), (steps) => {
      const pending = createPendingCalls();
      const expected = new Map<number, Call>();
      for (const each of steps) {
        const known = expected.get(each.xid);
        expect(pending.get(each.xid)).toBe(known);
        if (each.adds && known === undefined) {
          const made = call(each.xid);
          pending.add(made);
          expected.set(each.xid, made);
        } else if (!each.adds) {
          expect(pending.delete(known ?? call(each.xid))).toBe(expected.delete(each.xid));
        }
      }
      expect(pending.size).toBe(expected.size);
      expect(pending.values()).toEqual([...expected.values()].sort((a, b) => a.xid - b.xid));
    }),
  );
});
