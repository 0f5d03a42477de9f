import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { recordsContract } from '#testing/contracts/records.ts';
import { openRecords } from './sqlite.ts';

recordsContract('records in a file', () => {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-records-'));
  return {
    open: () => openRecords(join(folder, 'state.db')),
    [Symbol.dispose]: () => rmSync(folder, { recursive: true }),
  };
});
