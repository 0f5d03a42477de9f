import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createPendingCalls } from './pending-calls.ts';
import type { Call } from './transport.ts';

const call = (xid: number): Call => ({ xid, next: undefined }) as Call;

test('holds the same calls as a Map after any inserts and deletes', () => {
  // Few different low bits, so that many calls share a bucket, and enough calls that the table grows.
  const shared = fc.nat(5).map((i) => i * 1024);
  const xid = fc.oneof({ weight: 2, arbitrary: shared }, fc.nat(300), fc.nat(0x7fff_ffff));
  const step = fc.record({ xid, adds: fc.oneof({ weight: 2, arbitrary: fc.constant(true) }, fc.constant(false)) });
  fc.assert(
    fc.property(fc.array(step, { minLength: 300, maxLength: 400 }), (steps) => {
      const pending = createPendingCalls();
      const expected = new Map<number, Call>();
      for (const operation of steps) {
        const known = expected.get(operation.xid);
        expect(pending.get(operation.xid)).toBe(known);
        if (operation.adds && known === undefined) {
          const newCall = call(operation.xid);
          pending.add(newCall);
          expected.set(operation.xid, newCall);
        } else if (!operation.adds) {
          expect(pending.delete(known ?? call(operation.xid))).toBe(expected.delete(operation.xid));
        }
      }
      expect(pending.size).toBe(expected.size);
      expect(pending.values()).toEqual([...expected.values()].sort((a, b) => a.xid - b.xid));
    }),
  );
});
