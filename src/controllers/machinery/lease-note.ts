import type { Lease } from '#wire/kube/types.ts';

/** A text that candidates record in an annotation of the Lease. Each method gets the current text. */
export interface LeaseNote {
  readonly annotation: string;
  /** Called while another process leads. Returns the new text, or undefined to keep the current one. */
  whileWaiting(text: string | undefined): Promise<string | undefined>;
  /** Called before each update that tries to acquire the Lease. That update also writes the returned text. */
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
