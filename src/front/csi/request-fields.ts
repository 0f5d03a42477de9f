import { bytesOf } from '#base/quantity.ts';
import { formatSize } from '#base/size.ts';
import { StowageError } from '#core/errors.ts';
import { quoted } from '#core/names.ts';
import type { CapacityRange } from '#wire/csi/generated/csi.ts';

export function invalidRequest(message: string): StowageError {
  return new StowageError(message, {
    code: 'invalid',
    reason: 'csi-request-invalid',
    action: 'Correct the claim, class or volume of the request; see the CSI specification.',
  });
}

/** The size limits of the CSI specification. */
const maxStringBytes = 128;
const maxMapBytes = 4_096;
const maxPathBytes = 4_096;

export function requiredText(value: string, field: string, maxBytes = maxStringBytes): string {
  if (value === '') throw invalidRequest(`${field} is missing`);
  if (Buffer.byteLength(value) > maxBytes) throw invalidRequest(`${field} has more than ${maxBytes} bytes`);
  return value;
}

/** A path to look up. A relative path is allowed: nothing is mounted there, so the result is "not found". */
export function requiredPath(value: string, field: string): string {
  const path = requiredText(value, field, maxPathBytes);
  return path.length > 1 ? path.replace(/\/+$/, '') : path;
}

export function requiredAbsolutePath(value: string, field: string): string {
  const path = requiredPath(value, field);
  if (!path.startsWith('/')) throw invalidRequest(`${field} is not an absolute path`);
  return path;
}

/** Checks the size of keys and values. Errors never quote the content: it may be secret. */
export function toCheckedMap(
  value: Readonly<Record<string, string>>,
  field: string,
  maxBytes = maxMapBytes,
): ReadonlyMap<string, string> {
  const entries = Object.entries(value);
  const bytes = entries.reduce((sum, [key, text]) => sum + Buffer.byteLength(key) + Buffer.byteLength(text), 0);
  if (bytes > maxBytes) throw invalidRequest(`${field} has more than ${maxBytes} bytes`);
  return new Map(entries);
}

/** A size in the notation of a claim. An invalid size is an error, so that the pod does not get a volume without a limit. */
export function parseSizeField(text: string | undefined): bigint | undefined {
  if (text === undefined) return undefined;
  const bytes = bytesOf(text);
  if (bytes === undefined || bytes === 0n)
    throw invalidRequest(`${quoted(text)} is not a size; use a Kubernetes quantity such as 10Gi`);
  return bytes;
}

export interface CapacityLimits {
  /** Undefined: no limit. */
  readonly from: bigint | undefined;
  readonly to: bigint | undefined;
}

export function parseCapacityRange(range: CapacityRange | undefined): CapacityLimits {
  const { requiredBytes = 0n, limitBytes = 0n } = range ?? {};
  if (requiredBytes < 0n || limitBytes < 0n) throw invalidRequest('capacity_range is negative');
  if (range !== undefined && requiredBytes === 0n && limitBytes === 0n) throw invalidRequest('capacity_range is empty');
  const [wanted, limit] = [formatSize(requiredBytes), formatSize(limitBytes)];
  if (limitBytes !== 0n && requiredBytes > limitBytes)
    throw outOfRange(`required_bytes (${wanted}) is larger than limit_bytes (${limit})`);
  return { from: requiredBytes === 0n ? undefined : requiredBytes, to: limitBytes === 0n ? undefined : limitBytes };
}

export const isWithin = (bytes: bigint | undefined, { from, to }: CapacityLimits): boolean =>
  (from === undefined || (bytes !== undefined && bytes >= from)) &&
  (to === undefined || bytes === undefined || bytes <= to);

export function outOfRange(message: string): StowageError {
  return new StowageError(message, {
    code: 'out-of-range',
    reason: 'csi-capacity-range',
    action: 'Request a size between required_bytes and limit_bytes.',
  });
}
