import { hostname } from 'node:os';
import { StowageError } from '#core/errors.ts';
import type { NodeName } from '#core/model.ts';
import { quoted } from '#core/names.ts';

/** Valid for Kubernetes nodes and host names. Other users of the same store can see it. */
const grammar = /^[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?$/;

/** The configured name, otherwise the host name. */
export function nodeNameFrom(told: string | undefined): NodeName {
  if (told === undefined) return hostname() as NodeName;
  if (grammar.test(told)) return told as NodeName;
  throw new StowageError(`${quoted(told)} is not a valid node name`, {
    code: 'invalid',
    reason: 'node-name-invalid',
    action:
      'Use 1 to 253 of the characters A-Z a-z 0-9 _ . - for --node-name, with a letter or digit at the start and end.',
  });
}
