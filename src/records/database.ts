import { chmodSync, closeSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { DatabaseSync, type SQLInputValue, type SQLOutputValue } from 'node:sqlite';
import { isErrno } from '#base/errno.ts';
import { corruptError, holderFile, stateError } from './errors.ts';
import { createGroupCommit } from './group-commit.ts';
import { migrate } from './migrations.ts';

export type Row = Readonly<Record<string, SQLOutputValue>>;

/** Answers are always read to the end: a statement left half-read would pin the WAL and let it grow. */
export interface Statement {
  /** The number of rows changed. */
  run(...values: SQLInputValue[]): number;
  get(...values: SQLInputValue[]): Row | undefined;
  all(...values: SQLInputValue[]): Row[];
}

export interface Database {
  prepare(sql: string): Statement;
  transaction<T>(work: () => T): T;
  isTransaction(): boolean;
  /** As the records' own. */
  groupCommit(work: () => void): Promise<void>;
  /** Its writes survive a power cut when it returns, or when the transaction around it has ended. */
  durably<T>(work: () => T): T;
  close(): void;
}

const pragmas = `
  -- One process per state folder. It holds the lock until it ends, however it ends, and needs no shared memory file.
  PRAGMA locking_mode = EXCLUSIVE;
  PRAGMA journal_mode = WAL;
  -- A commit is in the kernel's hands when it returns, so it survives kill -9. Only a power cut can take the last ones
  -- back. What they said of volumes is found again on the stores, which sync for themselves, so FULL would only add an
  -- fsync to each; what is nowhere else (settings, stores, tokens) goes through 'durably'.
  PRAGMA synchronous = NORMAL;
  -- The server's memory is counted; the kernel caches the file anyway.
  PRAGMA cache_size = -500;
  -- The log is folded into the file every 4 MiB, and cut back to that after a transaction that outgrew it.
  PRAGMA wal_autocheckpoint = 1000;
  PRAGMA journal_size_limit = 4194304;
`;

/** A path that is no file: such a database is gone when it is closed. */
const inMemory = ':memory:';

export function openDatabase(path: string): Database {
  const translated = <T>(work: () => T): T => {
    try {
      return work();
    } catch (cause) {
      throw stateError(cause, path);
    }
  };
  const db = translated(() => openFile(path));
  let unsynced = false;
  const transactions = createTransactions(db, translated);
  const committed: Database['transaction'] = (work) => {
    try {
      return transactions(work);
    } catch (cause) {
      // Of what was rolled back nothing is left to sync.
      if (!db.isTransaction) unsynced = false;
      throw cause;
    }
  };
  const transaction: Database['transaction'] = (work) => {
    const result = committed(work);
    if (unsynced && !db.isTransaction) {
      unsynced = false;
      // It syncs the log before it folds it into the file, and with it everything committed so far.
      translated(() => db.exec('PRAGMA wal_checkpoint(PASSIVE)'));
    }
    return result;
  };
  return {
    prepare: (sql) => {
      const statement = db.prepare(sql);
      return {
        run: (...values) => translated(() => Number(statement.run(...values).changes)),
        get: (...values) => translated(() => statement.get(...values)),
        all: (...values) => translated(() => statement.all(...values)),
      };
    },
    transaction,
    isTransaction: () => db.isTransaction,
    // What comes after a commit, and may fail, is for what has to be durable: a commit that is there must not look as if it had failed.
    groupCommit: createGroupCommit(transactions, () => db.isTransaction),
    durably: (work) =>
      transaction(() => {
        unsynced = true;
        return work();
      }),
    close: () => {
      if (!db.isOpen) return;
      try {
        // Before the lock goes, else it could be the next holder's.
        if (path !== inMemory) translated(() => rmSync(holderFile(path), { force: true }));
        translated(() => db.exec('PRAGMA wal_checkpoint(TRUNCATE)'));
      } finally {
        db.close();
      }
    },
  };
}

function openFile(path: string): DatabaseSync {
  if (path !== inMemory) makePrivate(path);
  // Timeout 0: whoever has the folder keeps it, so waiting for it would only delay the error.
  const db = new DatabaseSync(path, { timeout: 0 });
  try {
    db.exec(pragmas);
    const damage = db.prepare('PRAGMA quick_check(1)').get()?.['quick_check'];
    if (damage !== 'ok') throw corruptError(path, new Error(String(damage)));
    migrate(db, path);
    if (path !== inMemory) noteHolder(holderFile(path));
  } catch (cause) {
    db.close();
    throw cause;
  }
  return db;
}

function noteHolder(file: string): void {
  writeFileSync(
    `${file}.new`,
    `${JSON.stringify({ version: 1, pid: process.pid, since: new Date().toISOString() })}\n`,
  );
  renameSync(`${file}.new`, file);
}

/** Tokens' hashes are inside. SQLite gives the WAL the mode of the database. */
function makePrivate(path: string): void {
  try {
    // Only a file that did not exist is opened here: closing any descriptor of an open database drops this process's locks.
    closeSync(openSync(path, 'wx', 0o600));
  } catch (cause) {
    if (!isErrno(cause, 'EEXIST')) throw cause;
    chmodSync(path, 0o600);
  }
}

/**
 * The outermost call begins and commits. An inner one joins it as a savepoint: when it throws and somebody in between
 * catches that, its own changes are gone and the rest goes on.
 */
function createTransactions(db: DatabaseSync, translated: <T>(work: () => T) => T): <T>(work: () => T) => T {
  // Prepared: to read the word takes SQLite longer than to do it.
  const outer = { begin: db.prepare('BEGIN IMMEDIATE'), commit: db.prepare('COMMIT'), rollback: 'ROLLBACK' };
  const inner = {
    begin: db.prepare('SAVEPOINT joined'),
    commit: db.prepare('RELEASE joined'),
    rollback: 'ROLLBACK TO joined; RELEASE joined',
  };
  return (work) => {
    const words = db.isTransaction ? inner : outer;
    translated(() => words.begin.run());
    try {
      const result = work();
      if (result instanceof Promise) throw new TypeError('a transaction cannot wait: its work must not be async');
      translated(() => words.commit.run());
      return result;
    } catch (cause) {
      // A full disk can make SQLite roll everything back by itself.
      if (db.isTransaction) db.exec(words.rollback);
      throw cause;
    }
  };
}
