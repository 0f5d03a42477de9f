/** Tolerance for clock differences. */
const leewayMs = 300_000;

/**
 * Whether the token's claims (RFC 7519) have the audience, and have not expired. The claims are not verified: this only saves reviews of
 * tokens that cannot be valid.
 */
export function mayBeTokenFor(token: string, audience: string, now: number): boolean {
  const [header = '', claims = '', signature = '', ...more] = token.split('.');
  if (header === '' || claims === '' || signature === '' || more.length > 0) return false;
  try {
    const { aud, exp } = JSON.parse(Buffer.from(claims, 'base64url').toString('utf8')) as Readonly<
      Record<string, unknown>
    >;
    const hasAudience = Array.isArray(aud) ? aud.includes(audience) : aud === audience;
    return hasAudience && typeof exp === 'number' && exp * 1_000 > now - leewayMs;
  } catch {
    return false;
  }
}
