/** Clocks differ. */
const leewayMs = 300_000;

/**
 * Whether this can be a token of a service account, for this audience and at this time, by what it says of itself (RFC 7519). Nobody has
 * vouched for any of it: what cannot be one need not be asked about, and no more.
 */
export function mayBeTokenFor(token: string, audience: string, now: number): boolean {
  const [header = '', claims = '', signature = '', ...more] = token.split('.');
  if (header === '' || claims === '' || signature === '' || more.length > 0) return false;
  try {
    const { aud, exp } = JSON.parse(Buffer.from(claims, 'base64url').toString('utf8')) as Readonly<
      Record<string, unknown>
    >;
    const isMeant = Array.isArray(aud) ? aud.includes(audience) : aud === audience;
    return isMeant && typeof exp === 'number' && exp * 1_000 > now - leewayMs;
  } catch {
    return false;
  }
}
