import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import type { Operations } from '#core/operations.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createMemoryRecords } from '#testing/fakes/records.ts';
import { createMutations } from './mutations.ts';

const content = '["POST","/v1/volumes",{"name":"a"},null]';
const fingerprint = createHash('sha256').update(content).digest('base64url');
const mutation = {
  principal: 'tk1-0123456789abcdef',
  key: 'key-1',
  content: () => content,
  detached: false,
  keepAnswer: true,
  forgotten: false,
};
const answer = { status: 201, body: { id: 'sv1-1' }, headers: { etag: '"1"' } };
/** The column `body`. */
const body = '{"status":201,"body":{"id":"sv1-1"},"headers":{"etag":"\\"1\\""}}';
const scope = { signal: new AbortController().signal, log: silentLog() };

function mutationsOn(kept: ReturnType<typeof createMemoryRecords>) {
  const records = kept.open();
  return {
    records,
    mutations: createMutations(
      { idempotentResponses: records.idempotentResponses, operations: {} as Operations },
      createFakeClock(),
    ),
  };
}

test('the answer to a request with an Idempotency-Key is stored in the format of 0.1', async () => {
  using kept = createMemoryRecords();
  const { records, mutations } = mutationsOn(kept);
  const ids: string[] = [];
  await mutations.run(mutation, scope, ({ requestId }) => {
    ids.push(requestId);
    return answer;
  });
  // The volume's record has the same id, so a repeat is recognised even after the answer expired.
  expect(ids).toEqual(['tk1-0123456789abcdef key-1']);
  expect(records.idempotentResponses.get('tk1-0123456789abcdef key-1')).toMatchObject({
    fingerprint,
    status: 201,
    body,
  });
});

test('a repeated request gets the answer that 0.1 stored', async () => {
  using kept = createMemoryRecords();
  const { records, mutations } = mutationsOn(kept);
  records.idempotentResponses.put('tk1-0123456789abcdef key-1', { fingerprint, status: 201, body, at: 0 });
  expect(await mutations.run(mutation, scope, () => expect.fail('it was done again'))).toEqual(answer);
  const other = { ...mutation, content: () => '["DELETE"]' };
  await expect(mutations.run(other, scope, () => answer)).rejects.toMatchObject({ code: 'conflict' });
});
