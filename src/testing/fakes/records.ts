import type { Records } from '#core/ports.ts';
import { openRecords } from '#records/sqlite.ts';

/** The real records on a database in memory. They survive a close, like a file. */
export interface MemoryRecords extends Disposable {
  open(): Records;
}

export function createMemoryRecords(): MemoryRecords {
  const records = openRecords(':memory:');
  return { open: () => opened(records), [Symbol.dispose]: () => records.close() };
}

function opened(records: Records): Records {
  let isOpen = true;
  // A closed core may still run. Its writes must not reach the records of the next core.
  const whileOpen = (part: object): object =>
    Object.fromEntries(
      Object.entries(part).map(([name, value]) => {
        if (typeof value !== 'function') return [name, whileOpen(value)];
        const guarded = (...args: readonly unknown[]): unknown => {
          if (!isOpen) throw new Error('the records are closed');
          return value(...args);
        };
        return [name, guarded];
      }),
    );
  const close = (): void => {
    isOpen = false;
  };
  return { ...(whileOpen(records) as Records), close };
}
