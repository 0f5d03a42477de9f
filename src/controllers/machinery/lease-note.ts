import type { Lease } from '#wire/kube/types.ts';

/** What candidates record in an annotation of the Lease. Each call gets the text that is there. */
export interface LeaseNote {
  readonly annotation: string;
  /** Another process leads. Undefined: there is nothing to change. */
  whileWaiting(text: string | undefined): Promise<string | undefined>;
  /** The text is written by the same update that acquires the Lease. Called again if that update fails. */
  whenAcquiring(text: string | undefined, signal: AbortSignal): Promise<string>;
}

export const noteOf = (lease: Lease | undefined, note: LeaseNote | undefined): string | undefined =>
  note && lease?.metadata.annotations?.[note.annotation];

/** Returns the Lease unchanged if there is no text. */
export function withNote(lease: Lease, note: LeaseNote | undefined, text: string | undefined): Lease {
  if (note === undefined || text === undefined) return lease;
  const annotations = { ...lease.metadata.annotations, [note.annotation]: text };
  return { ...lease, metadata: { ...lease.metadata, annotations } };
}
