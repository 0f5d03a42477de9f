/**
 * Writes to a database that other processes write to as well. Each transaction reads the rows of the earlier ones.
 * Arguments: the database, the writer's name, the number of transactions, the journal mode, the lock timeout.
 */

import process from 'node:process';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as delay } from 'node:timers/promises';

const [, , file = '', writer = '', count = '0', mode = 'DELETE', timeout = '20000'] = process.argv;
using database = new DatabaseSync(file, { timeout: Number(timeout) });
const chosen = await chosenMode(performance.now() + Number(timeout));
if (chosen.toUpperCase() !== mode) throw new Error(`the journal's mode is ${chosen}`);
database.exec('CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, writer TEXT, text TEXT) STRICT');
const last = database.prepare('SELECT coalesce(max(number), 0) AS number FROM entries');
const add = database.prepare('INSERT INTO entries VALUES (?, ?, ?)');
for (let i = 0; i < Number(count); i++) {
  database.exec('BEGIN IMMEDIATE');
  const { number } = last.get() as { number: number };
  add.run(number + 1, writer, 'text '.repeat(i % 200));
  database.exec('COMMIT');
}

/** SQLite does not wait when two processes change the journal mode at the same time: one of them gets "database is locked" at once. */
async function chosenMode(until: number): Promise<string> {
  for (;;) {
    try {
      return (database.prepare(`PRAGMA journal_mode = ${mode}`).get() as { journal_mode: string }).journal_mode;
    } catch (cause) {
      const isBusy = cause instanceof Error && 'errcode' in cause && cause.errcode === 5;
      if (!isBusy || performance.now() > until) throw cause;
      await delay(10);
    }
  }
}
