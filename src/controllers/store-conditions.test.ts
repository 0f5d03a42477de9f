import { expect, test } from 'vitest';
import { relayed } from '#core/errors.ts';
import { conditionForProblem } from './store-conditions.ts';

test.each([
  ['denied', 'nfs-export-denied', 'Denied'],
  ['unavailable', 'nfs-hangs-up', 'Denied'],
  ['denied', 'nfs-tls-certificate', 'NotUsable'],
  ['denied', 'nfs-read-only', 'NotUsable'],
  ['not-found', 'store-root-missing', 'NotFound'],
] as const)(
  'a store problem with the code %s and the reason %s becomes the condition reason %s',
  (code, reason, conditionReason) => {
    expect(conditionForProblem(relayed('it failed', { code, reason, action: 'Look.' }))).toEqual({
      status: 'False',
      reason: conditionReason,
      message: 'it failed. Look.',
    });
  },
);
