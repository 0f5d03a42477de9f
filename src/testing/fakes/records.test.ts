import { expect, test } from 'vitest';
import { recordsContract } from '../contracts/records.ts';
import { createMemoryRecords } from './records.ts';

recordsContract('records in memory', createMemoryRecords);

test('a core that closed its records cannot write into those of the next one', () => {
  using memory = createMemoryRecords();
  const first = memory.open();
  first.close();
  expect(() => first.settings.set('a', '1')).toThrow('the records are closed');
  expect(memory.open().settings.get('a')).toBeUndefined();
});
