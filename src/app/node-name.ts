import { hostname } from 'node:os';
import { StowageError } from '#core/errors.ts';
import type { NodeName } from '#core/model.ts';
import { quoted } from '#core/names.ts';

/** Valid for Kubernetes nodes and host names. Other users of the same store can see it. */
const nodeNamePattern = /^[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?$/;

/** The configured name, otherwise the host name. */
export function nodeNameFrom(configuredName: string | undefined): NodeName {
  if (configuredName === undefined) return hostname() as NodeName;
  if (nodeNamePattern.test(configuredName)) return configuredName as NodeName;
  throw new StowageError(`${quoted(configuredName)} is not a valid node name`, {
    code: 'invalid',
    reason: 'node-name-invalid',
    action:
      'Use 1 to 253 of the characters A-Z a-z 0-9 _ . - for --node-name, with a letter or digit at the start and end.',
  });
}
