import type { Records } from '#core/ports.ts';
import { openRecords } from '#records/sqlite.ts';

/** Records in memory, by the real code. They survive a close, so that the next one to open them finds them, as in a file. */
export interface MemoryRecords extends Disposable {
  open(): Records;
}

export function createMemoryRecords(): MemoryRecords {
  const records = openRecords(':memory:');
  return { open: () => opened(records), [Symbol.dispose]: () => records.close() };
}

function opened(records: Records): Records {
  let isOpen = true;
  // A closed core may still run. Its writes must not reach the records of the next one.
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
