import type { Clock } from '#base/clock.ts';
import type { Client } from './http.ts';
import type { Injected, Io } from './io.ts';
import type { Output } from './output.ts';

/** What every command gets. */
export interface Session {
  readonly io: Io;
  readonly client: Client;
  readonly out: Output;
  readonly clock: Clock;
  readonly injected: Injected;
  /** Ends when nobody reads our output any more: following stops, work does not. */
  readonly unread: AbortSignal;
  /** Somebody watches: long work runs in the background of the server and is shown as it goes. */
  readonly watched: boolean;
  /** The server runs on this machine, under its paths. */
  readonly local: boolean;
}

/** The exit status; nothing means success. */
export type Work<A extends unknown[]> = (session: Session, ...args: A) => Promise<number> | Promise<void>;
/** Makes a command's work an action of the parser: session first, then the arguments and options commander gives. */
export type Act = <A extends unknown[]>(work: Work<A>) => (...args: A) => Promise<void>;
