import { chmodSync, closeSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { DatabaseSync, type SQLInputValue, type SQLOutputValue } from 'node:sqlite';
import { isErrno } from '#base/errno.ts';
import { corruptError, holderFile, stateError } from './errors.ts';
import { createGroupCommit } from './group-commit.ts';
import { migrate } from './migrations.ts';

export type Row = Readonly<Record<string, SQLOutputValue>>;

/** Always reads results to the end: a half-read statement would pin the WAL and let it grow. */
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
  /** See `Records.groupCommit`. */
  groupCommit(work: () => void): Promise<void>;
  /** The writes survive a power cut once this returns, or once the surrounding transaction has ended. */
  durably<T>(work: () => T): T;
  close(): void;
}

const pragmas = `
  -- One process per state folder. It holds the lock until it exits or dies, and needs no shared memory file.
  PRAGMA locking_mode = EXCLUSIVE;
  PRAGMA journal_mode = WAL;
  -- A commit is in the page cache when it returns, so it survives kill -9. Only a power cut can lose the last commits.
  -- Volume records can be restored from the stores, which sync themselves, so FULL would only add an fsync per commit.
  -- Data that exists nowhere else (settings, stores, tokens) is written with 'durably'.
  PRAGMA synchronous = NORMAL;
  -- Limits the server's memory; the kernel caches the file anyway.
  PRAGMA cache_size = -500;
  -- Checkpoint every 4 MiB, and truncate the log to that size after a larger transaction.
  PRAGMA wal_autocheckpoint = 1000;
  PRAGMA journal_size_limit = 4194304;
`;

/** SQLite's path for a database in memory. */
const inMemory = ':memory:';

export function openDatabase(path: string): Database {
  const translateErrors = <T>(work: () => T): T => {
    try {
      return work();
    } catch (cause) {
      throw stateError(cause, path);
    }
  };
  const db = translateErrors(() => openFile(path));
  let unsynced = false;
  const inTransaction = createTransactions(db, translateErrors);
  const runTransaction: Database['transaction'] = (work) => {
    try {
      return inTransaction(work);
    } catch (cause) {
      // Rolled-back writes need no sync.
      if (!db.isTransaction) unsynced = false;
      throw cause;
    }
  };
  const transaction: Database['transaction'] = (work) => {
    const result = runTransaction(work);
    if (unsynced && !db.isTransaction) {
      unsynced = false;
      // A checkpoint first syncs the log, and so everything committed so far.
      translateErrors(() => db.exec('PRAGMA wal_checkpoint(PASSIVE)'));
    }
    return result;
  };
  return {
    prepare: (sql) => {
      const statement = db.prepare(sql);
      return {
        run: (...values) => translateErrors(() => Number(statement.run(...values).changes)),
        get: (...values) => translateErrors(() => statement.get(...values)),
        all: (...values) => translateErrors(() => statement.all(...values)),
      };
    },
    transaction,
    isTransaction: () => db.isTransaction,
    // Without the checkpoint of `transaction`, which can fail: a successful commit must not be reported as failed.
    groupCommit: createGroupCommit(inTransaction, () => db.isTransaction),
    durably: (work) =>
      transaction(() => {
        unsynced = true;
        return work();
      }),
    close: () => {
      if (!db.isOpen) return;
      try {
        // Remove the holder file before releasing the lock; afterwards it could be the next holder's file.
        if (path !== inMemory) translateErrors(() => rmSync(holderFile(path), { force: true }));
        translateErrors(() => db.exec('PRAGMA wal_checkpoint(TRUNCATE)'));
      } finally {
        db.close();
      }
    },
  };
}

function openFile(path: string): DatabaseSync {
  if (path !== inMemory) makePrivate(path);
  // Timeout 0: the process that has the folder keeps it, so waiting would only delay the error.
  const db = new DatabaseSync(path, { timeout: 0 });
  try {
    db.exec(pragmas);
    const damage = db.prepare('PRAGMA quick_check(1)').get()?.['quick_check'];
    if (damage !== 'ok') throw corruptError(path, new Error(String(damage)));
    migrate(db, path);
    if (path !== inMemory) writeHolderFile(holderFile(path));
  } catch (cause) {
    db.close();
    throw cause;
  }
  return db;
}

function writeHolderFile(file: string): void {
  writeFileSync(
    `${file}.new`,
    `${JSON.stringify({ version: 1, pid: process.pid, since: new Date().toISOString() })}\n`,
  );
  renameSync(`${file}.new`, file);
}

/** The database contains hashes of tokens. SQLite gives the WAL the mode of the database. */
function makePrivate(path: string): void {
  try {
    // Open only a new file here: closing any descriptor of an open database drops this process's POSIX locks.
    closeSync(openSync(path, 'wx', 0o600));
  } catch (cause) {
    if (!isErrno(cause, 'EEXIST')) throw cause;
    chmodSync(path, 0o600);
  }
}

/**
 * The outermost call begins and commits. A nested call is a savepoint: if it throws and the caller catches the error, only
 * its own changes are rolled back.
 */
function createTransactions(db: DatabaseSync, translateErrors: <T>(work: () => T) => T): <T>(work: () => T) => T {
  // Prepared statements, since parsing takes SQLite longer than executing.
  const outer = { begin: db.prepare('BEGIN IMMEDIATE'), commit: db.prepare('COMMIT'), rollback: 'ROLLBACK' };
  const inner = {
    begin: db.prepare('SAVEPOINT joined'),
    commit: db.prepare('RELEASE joined'),
    rollback: 'ROLLBACK TO joined; RELEASE joined',
  };
  return (work) => {
    const statements = db.isTransaction ? inner : outer;
    translateErrors(() => statements.begin.run());
    try {
      const result = work();
      if (result instanceof Promise) throw new TypeError('a transaction cannot wait: its work must not be async');
      translateErrors(() => statements.commit.run());
      return result;
    } catch (cause) {
      // A full disk can make SQLite roll everything back by itself.
      if (db.isTransaction) db.exec(statements.rollback);
      throw cause;
    }
  };
}
